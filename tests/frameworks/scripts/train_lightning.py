"""A Lightning script as one writes it for torchrun; it has never heard of jobsdk."""

import argparse
import hashlib

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self):
        if self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch} loss {self.trainer.callback_metrics['loss'].item():.5f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--strategy", default="ddp")
    args = parser.parse_args()

    lightning.seed_everything(0)
    x = torch.randn(256, 8)
    data = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=8, shuffle=True)
    model = Regression()
    trainer = lightning.Trainer(
        accelerator="cpu",
        num_nodes=args.nodes,
        devices=args.devices,
        strategy=args.strategy,
        max_epochs=3,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir="outputs",
    )
    trainer.fit(model, data)
    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    rank, size = trainer.global_rank, trainer.world_size
    print(f"rank {rank} of {size} steps {trainer.global_step} weights {weights}", flush=True)
    if torch.distributed.is_initialized():  # else gloo's threads now and then abort a process that is ending
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
