"""A Hugging Face Trainer script as one writes it for torchrun; it has never heard of jobsdk."""

import argparse
import hashlib
import os
import sys

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class FirstToken(Dataset):
    """Sentences whose label is whether they begin with a low or a high token."""

    def __init__(self, size):
        self.tokens = torch.randint(0, 60, (size, 12), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = self.tokens[index]
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": int(tokens[0] >= 30)}


class Report(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        if state.is_world_process_zero and "loss" in logs:
            print(f"logged by rank {args.process_index}: epoch {logs['epoch']} loss {logs['loss']}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--report-to", default="none")
    args = parser.parse_args()

    set_seed(0)
    config = BertConfig(vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    arguments = TrainingArguments(
        output_dir="outputs",
        num_train_epochs=3,
        per_device_train_batch_size=8,
        learning_rate=2e-3,
        logging_strategy="epoch",
        save_strategy="epoch",
        report_to=args.report_to,
        disable_tqdm=True,
        use_cpu=True,
    )
    model = BertForSequenceClassification(config)
    trainer = Trainer(model, arguments, train_dataset=FirstToken(320), callbacks=[Report()])
    done = trainer.train()
    rank, size = arguments.process_index, arguments.world_size
    if trainer.is_world_process_zero():
        print(f"the main process is rank {rank}", flush=True)
    tensors = trainer.model.state_dict().values()
    weights = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()
    print(f"rank {rank} of {size} steps {done.global_step} weights {weights}", flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    # What DDP has used of gloo lives on, and its threads now and then abort a process that ends in Python's way.
    sys.stdout.flush()
    os._exit(0)
