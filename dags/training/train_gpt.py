"""A small GPT, trained for real: byte level, decoder-only, data parallel over gloo.

An ordinary training script, as somebody might have it on a cluster. It knows nothing of who starts it, and whoever
starts it knows it only by what it prints and by the files that it leaves:

    torchrun --nproc-per-node 2 train_gpt.py --steps 200 --checkpoint-every 20 --out run

- *Data*: the sources of Python's own standard library; there is always some where Python runs. Each rank reads its own
  share of the files. A batch depends on seed, step and rank alone, so a resumed run goes on with the very batches that
  the interrupted one would have seen.
- *Checkpoints*: `OUT/checkpoints/step-000040.pt`, written by rank 0 so that a file with that name is always complete
  (temporary file, fsync, rename); the newest three are kept. At the start rank 0 picks the newest one that can be read
  and hands its content to the others, so only rank 0 needs to see the folder.
- *SIGTERM* (a preemption, a drained node): every rank hears of it at the step's end, rank 0 saves, all exit with 0.
- A failure is not handled here: a rank that dies makes the others fail in their next collective call.

The start is kept short, because a restart is worth what its start costs: see `AdamW` and `without_the_compiler`.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import signal
import sys
import sysconfig
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

VOCABULARY = 128  # ASCII; every other byte is read as "?"
WIDTH, LAYERS, HEADS, CONTEXT = 96, 3, 4, 64  # 354,000 parameters: 0.1 s a step for four ranks on two cores (measured)
SEQUENCES_PER_RANK = 8
LEARNING_RATE, WARM_UP_STEPS = 3e-3, 20
CORPUS_BYTES_PER_RANK = 1_000_000  # more would only lengthen the start
KEPT_CHECKPOINTS = 3


@dataclass(frozen=True)
class Arguments:
    """The command line."""

    steps: int
    checkpoint_every: int
    out: Path
    step_seconds: float
    seed: int


def main() -> int:
    """Train until `--steps` is reached, or until somebody asks to stop."""
    arguments = parse_arguments(sys.argv[1:])
    stop_requested = catch_sigterm()
    torch.set_num_threads(1)  # several ranks share few cores here: more threads would only fight
    dist.init_process_group("gloo")
    torch.manual_seed(arguments.seed)
    network = Gpt()
    optimizer = AdamW(list(network.parameters()))
    checkpoints = Checkpoints(arguments.out / "checkpoints")
    first_step = resume(network, optimizer, checkpoints)
    with without_the_compiler():
        model = DistributedDataParallel(network)  # also copies rank 0's parameters to the others
        with torch.no_grad():
            model(torch.zeros(1, 1, dtype=torch.long))
    corpus = read_corpus(dist.get_rank(), dist.get_world_size())

    step = first_step
    for step in range(first_step + 1, arguments.steps + 1):
        started = time.monotonic()
        tokens = batch(corpus, arguments.seed, step, dist.get_rank())
        loss = train_step(model, optimizer, tokens, step)
        time.sleep(max(0.0, arguments.step_seconds - (time.monotonic() - started)))
        mean_loss, stopping = agree(loss, bool(stop_requested))
        say(f"step {step}/{arguments.steps} loss {mean_loss:.4f} dt {time.monotonic() - started:.3f}")
        if stopping or step == arguments.steps or step % arguments.checkpoint_every == 0:
            checkpoints.save(step, network, optimizer)
        if stopping and step < arguments.steps:
            say(f"stopping at step {step} after SIGTERM")
            break
    else:
        say(f"training finished at step {step}")
    dist.barrier()  # nobody leaves while rank 0 still writes
    dist.destroy_process_group()
    return 0


def parse_arguments(argv: list[str]) -> Arguments:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small GPT on the sources of Python's standard library.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--out", type=Path, default=Path("gpt-run"), metavar="DIR")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="a step takes at least this long")
    parser.add_argument("--seed", type=int, default=1337)
    return Arguments(**vars(parser.parse_args(argv)))


def catch_sigterm() -> list[int]:
    """Collect SIGTERMs in the list that is returned: it is looked at between two steps."""
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: received.append(number))
    return received


def say(line: str) -> None:
    """Print a line for a person: once, not once per rank, and at once."""
    if dist.get_rank() == 0:
        print(line, flush=True)


# ---- the model -------------------------------------------------------------------------------------------------------


class Gpt(nn.Module):
    """A decoder-only transformer: `forward` gives the scores of the next byte at each place."""

    def __init__(self) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.place_embedding = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.final_norm = nn.LayerNorm(WIDTH)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                depth = 2 * LAYERS if name.endswith("out.weight") else 1
                nn.init.normal_(parameter, std=0.02 / math.sqrt(depth))

    def forward(self, tokens: Tensor) -> Tensor:
        """Score the next byte: (batch, time) to (batch, time, vocabulary)."""
        states = self.token_embedding(tokens) + self.place_embedding.weight[: tokens.shape[1]]
        states = self.final_norm(self.blocks(states))
        return functional.linear(states, self.token_embedding.weight)


class Block(nn.Module):
    """Attention to what came before, then a small network at each place."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.network_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention_in, self.attention_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.network_in, self.network_out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, states: Tensor) -> Tensor:
        """Add what this block knows to the states."""
        count, time_steps, _ = states.shape
        heads = self.attention_in(self.attention_norm(states)).view(count, time_steps, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed: Tensor = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.attention_out(mixed.transpose(1, 2).reshape(count, time_steps, WIDTH))
        inner = functional.gelu(self.network_in(self.network_norm(states)))
        result: Tensor = states + self.network_out(inner)
        return result


class AdamW:
    """AdamW by hand.

    `torch.optim` would do the same, but its first step imports torch._dynamo (for torch.compile, which isn't used
    here): 5 s alone, 16 to 24 s for four ranks on two cores (measured), in every restart.
    """

    def __init__(self, parameters: list[Tensor], betas: tuple[float, float] = (0.9, 0.95)) -> None:
        self.parameters = parameters
        self.betas = betas
        self.first_moments = [torch.zeros_like(p) for p in parameters]
        self.second_moments = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self, number: int, learning_rate: float, weight_decay: float = 0.01) -> None:
        """Change the parameters by their gradients; `number` counts from 1."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        first, second = self.betas
        torch._foreach_mul_(self.first_moments, first)
        torch._foreach_add_(self.first_moments, gradients, alpha=1 - first)
        torch._foreach_mul_(self.second_moments, second)
        torch._foreach_addcmul_(self.second_moments, gradients, gradients, value=1 - second)
        scales = torch._foreach_sqrt(torch._foreach_div(self.second_moments, 1 - second**number))
        torch._foreach_add_(scales, 1e-8)
        torch._foreach_mul_(self.parameters, 1 - learning_rate * weight_decay)
        torch._foreach_addcdiv_(self.parameters, self.first_moments, scales, value=-learning_rate / (1 - first**number))
        for parameter in self.parameters:
            parameter.grad = None

    def tensors(self) -> list[Tensor]:
        """Everything that a checkpoint has to hold."""
        return [*self.first_moments, *self.second_moments]


@contextlib.contextmanager
def without_the_compiler() -> Iterator[None]:
    """Keep DistributedDataParallel from importing torch._dynamo.

    Its constructor asks the compiler for one setting, and its first forward pass for a decorator (which it keeps).
    That import costs as much as all of `import torch` (see AdamW), so a stand-in gives the answers of a process that
    compiles nothing.
    """
    if "torch._dynamo" in sys.modules:
        yield
        return
    stand_in: Any = types.ModuleType("torch._dynamo")
    stand_in.utils = types.SimpleNamespace(get_optimize_ddp_mode=lambda: "no_optimization")
    stand_in.disable = lambda function, *_args, **_options: function
    sys.modules["torch._dynamo"] = stand_in
    try:
        yield
    finally:
        del sys.modules["torch._dynamo"]
        vars(torch).pop("_dynamo", None)


# ---- one step --------------------------------------------------------------------------------------------------------


def train_step(model: DistributedDataParallel, optimizer: AdamW, tokens: Tensor, step: int) -> float:
    """Forward, backward (where the ranks average their gradients), and the change of the parameters."""
    scores = model(tokens[:, :-1])
    loss = functional.cross_entropy(scores.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step(step, LEARNING_RATE * min(1.0, step / WARM_UP_STEPS))
    return float(loss.item())


def agree(loss: float, stop_requested: bool) -> tuple[float, bool]:
    """Average the loss over the ranks, and stop on all of them if one was asked to."""
    values = torch.tensor([loss, float(stop_requested)])
    dist.all_reduce(values)
    return float(values[0]) / dist.get_world_size(), bool(values[1] > 0)


# ---- the data --------------------------------------------------------------------------------------------------------


def read_corpus(rank: int, world_size: int) -> Tensor:
    """This rank's share of the standard library's sources, as one row of bytes."""
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = bytearray()
    for source in sources[rank::world_size]:
        text += source.read_bytes()
        if len(text) > CORPUS_BYTES_PER_RANK:
            break
    corpus = torch.frombuffer(text, dtype=torch.uint8)
    return torch.where(corpus < VOCABULARY, corpus, ord("?"))


def batch(corpus: Tensor, seed: int, step: int, rank: int) -> Tensor:
    """The sequences of one step, one byte longer than the context: inputs and targets in one."""
    chance = random.Random(f"{seed}/{step}/{rank}")
    starts = [chance.randrange(len(corpus) - CONTEXT - 1) for _ in range(SEQUENCES_PER_RANK)]
    return torch.stack([corpus[start : start + CONTEXT + 1] for start in starts]).long()


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def resume(network: Gpt, optimizer: AdamW, checkpoints: Checkpoints) -> int:
    """Load what rank 0 finds, give it to all, and return the step that it was saved after (0: a fresh start)."""
    step = checkpoints.load_newest(network, optimizer) if dist.get_rank() == 0 else 0
    choice = torch.tensor([step])
    dist.broadcast(choice, src=0)
    step = int(choice.item())
    if step:
        for tensor in optimizer.tensors():
            dist.broadcast(tensor, src=0)
        say(f"resumed from checkpoint step {step} ({checkpoints.path(step)})")
    else:
        say("no checkpoint, starting at step 0")
    return step


@dataclass(frozen=True)
class Checkpoints:
    """The folder of checkpoints; used by rank 0 alone."""

    folder: Path

    def path(self, step: int) -> Path:
        """Where the checkpoint of this step lies."""
        return self.folder / f"step-{step:06d}.pt"

    def load_newest(self, network: Gpt, optimizer: AdamW) -> int:
        """Load the newest checkpoint that can be read; the step that it was saved after, or 0."""
        for path in self._newest_first():
            try:
                content = torch.load(path, weights_only=True)
                network.load_state_dict(content["model"])
                for tensor, saved in zip(optimizer.tensors(), content["optimizer"], strict=True):
                    tensor.copy_(saved)
                return int(content["step"])
            except Exception as error:  # noqa: BLE001 - a broken file can raise almost anything
                print(f"checkpoint {path} can't be read ({type(error).__name__}), trying the one before", flush=True)
        return 0

    def save(self, step: int, network: Gpt, optimizer: AdamW) -> None:
        """Write the checkpoint of this step (rank 0), and remove the oldest ones."""
        if dist.get_rank() != 0:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        content = {"step": step, "model": network.state_dict(), "optimizer": optimizer.tensors()}
        temporary = self.folder / f".step-{step:06d}.pt.{os.getpid()}"
        with temporary.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self.path(step))
        say(f"saved checkpoint step {step} ({self.path(step)})")
        for old in self._newest_first()[KEPT_CHECKPOINTS:]:
            old.unlink()

    def _newest_first(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.pt"), reverse=True)


if __name__ == "__main__":
    sys.exit(main())
