"""An accelerate script as one writes it for `accelerate launch` or torchrun; it has never heard of jobsdk."""

import hashlib

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    x = torch.randn(256, 8)
    data = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    model, optimizer, data = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01), data)

    steps = 0
    for epoch in range(3):
        losses = []
        for inputs, targets in data:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.detach())
            steps += 1
        mean = accelerator.gather(torch.stack(losses)).mean().item()
        accelerator.print(f"epoch {epoch} loss {mean:.5f}", flush=True)

    accelerator.wait_for_everyone()
    parameters = accelerator.unwrap_model(model).parameters()
    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in parameters)).hexdigest()
    me, size = accelerator.process_index, accelerator.num_processes
    print(f"rank {me} of {size} steps {steps} weights {weights}", flush=True)
    if accelerator.is_main_process:
        print(f"the main process is rank {me}, local rank {accelerator.local_process_index}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
