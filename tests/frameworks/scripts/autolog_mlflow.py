"""A Lightning script whose only word on tracking is `mlflow.autolog(...)`."""

import lightning
import mlflow
import torch
from torch.utils.data import DataLoader, TensorDataset
from train_lightning import Regression


def main():
    mlflow.autolog(log_models=False)
    lightning.seed_everything(0)
    x = torch.randn(256, 8)
    data = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=8, shuffle=True)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=3,
        logger=False,
        enable_progress_bar=False,
        default_root_dir="outputs",
    )
    trainer.fit(Regression(), data)
    if torch.distributed.is_initialized():  # else gloo's threads now and then abort a process that is ending
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
