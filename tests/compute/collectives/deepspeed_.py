import os

from part import end, say, show_environment

show_environment()
os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed  # noqa: E402
import torch  # noqa: E402

deepspeed.init_distributed("gloo")
rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
adam = {"type": "Adam", "params": {"torch_adam": True}}
model = torch.nn.Linear(2, 1, bias=False)
engine, *_ = deepspeed.initialize(model=model, config={"train_batch_size": size, "optimizer": adam})
engine.backward(engine(torch.full((1, 2), float(rank + 1))).sum())
engine.step()
total = torch.tensor([float(rank + 1)])
torch.distributed.all_reduce(total)
torch.distributed.barrier()
say(total.item())
end()
