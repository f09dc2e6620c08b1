"""GRPO through the data plane: a generator and a trainer, each a process, and a staleness of 0 or 1 between them.

A tiny transformer learns to sort: the prompt is 1 to 5 digits and ``=``, the answer the same digits in order. The
reward is the share of right tokens, so a half-sorted answer earns something. A prompt is answered by a group of 8, and
an answer is as good as it is better than the rest of its group. Groups are claimed and dropped whole: stale ones, and
those whose answers are all equally good, which teach nothing.

    python examples/async/grpo.py                      # both, one after the other, side by side in a table
    python examples/async/grpo.py --max-staleness 1    # only this one

With ``max_staleness`` 0 the generator waits for the weights of every update before it goes on: that is synchronous RL.
With 1 it generates the next batch while the trainer trains on this one. Nothing else differs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
import time

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from tunegym import dataplane
from tunegym.asyncrl import weights

DIGITS, LONGEST = 10, 5
END, EQUALS, PAD = DIGITS, DIGITS + 1, DIGITS + 2
PROMPT = LONGEST + 1  # digits and "=", padded at the left
GROUP, GROUPS = 8, 48
FIELDS = ("prompt", "answer", "log_prob")


# the task ---------------------------------------------------------------------------------------------


def make_prompt(rng: random.Random) -> list[int]:
    """Some digits."""
    return [rng.randrange(DIGITS) for _ in range(rng.randint(1, LONGEST))]


def reward(prompt: list[int], answer: list[int]) -> float:
    """The share of right tokens, 1 at best."""
    right = [*sorted(prompt), END]
    return sum(one == other for one, other in zip(right, answer, strict=False)) / max(len(right), len(answer))


# the policy -------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """Attention and a perceptron, each around a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """One layer; ``mask`` says who may see whom."""
        rows, length, width = x.shape
        parts = self.attend(self.norms[0](x)).view(rows, length, 3, self.heads, width // self.heads)
        seen = scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4), attn_mask=mask)
        x = x + self.project(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.think(self.norms[1](x))


class Transformer(nn.Module):
    """Logits of the next token; positions are counted from ``=``."""

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(PAD + 1, width), nn.Embedding(2 * PROMPT, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, END + 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """For every place, the logits of the token after it."""
        length = tokens.shape[1]
        before = torch.ones(length, length, dtype=torch.bool).tril()
        mask = (before & (tokens != PAD)[:, None, :]) | torch.eye(length, dtype=torch.bool)
        x = self.tokens(tokens) + self.places(torch.arange(length))
        for layer in self.layers:
            x = layer(x, mask[:, None])
        return self.head(self.norm(x))


def laid_out(prompts: list[list[int]]) -> torch.Tensor:
    """Prompts as one array, ``=`` at the end of each."""
    return torch.tensor([[PAD] * (LONGEST - len(prompt)) + prompt + [EQUALS] for prompt in prompts])


@torch.no_grad()
def answered(policy: Transformer, prompts: list[list[int]], greedy: bool = False) -> tuple[list, list]:
    """An answer to each prompt up to its end, as tokens and their log-probabilities."""
    tokens, log_probs = laid_out(prompts), []
    for _ in range(LONGEST + 1):
        logs = policy(tokens)[:, -1].log_softmax(-1)
        chosen = logs.argmax(-1, keepdim=True) if greedy else torch.multinomial(logs.exp(), 1)
        tokens = torch.cat([tokens, chosen], 1)
        log_probs.append(logs.gather(1, chosen))
    answers = tokens[:, PROMPT:].tolist()
    lengths = [one.index(END) + 1 if END in one else len(one) for one in answers]
    found = torch.cat(log_probs, 1).tolist()
    return tuple([row[:length] for row, length in zip(rows, lengths, strict=True)] for rows in (answers, found))


# the generator ----------------------------------------------------------------------------------------


def generate(url: str, staleness: dataplane.StalenessPolicy, seed: int) -> None:
    """Generate groups for as long as they are admitted, with the newest weights."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng, policy = random.Random(seed), Transformer()
    plane = dataplane.attach(url)
    producer = plane.producer("rollouts")
    started, version = 0, -1
    while True:
        token = producer.start(GROUPS * GROUP)  # before the weights: a rewind in between would refuse the put
        # Each version was made of one batch, so what is left of the started samples is outstanding.
        while version < 0 or not staleness.admits(
            GROUPS * GROUP, version, outstanding=started - version * GROUPS * GROUP
        ):
            version, newest = weights.fetch_next(plane, "generator")
            policy.load_state_dict(newest)
        started += GROUPS * GROUP
        groups = [make_prompt(rng) for _ in range(GROUPS)]
        prompts = [prompt for prompt in groups for _ in range(GROUP)]
        answers, log_probs = answered(policy, prompts)
        rewards = [reward(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
        names = [f"{seed}-{started}-{number}" for number in range(len(prompts))]
        producer.put_samples(
            token,
            names,
            {"prompt": prompts, "answer": answers, "log_prob": log_probs},
            tags=[{"weight_version": version, "reward": one} for one in rewards],
            group_ids=[names[number - number % GROUP] for number in range(len(prompts))],
            lengths="answer",
        )


# the trainer ------------------------------------------------------------------------------------------


def train(policy: Transformer, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> None:
    """One update by GRPO: the clipped ratio, its upper end further away, and a bonus on entropy."""
    rows = len(batch["answer"])
    for part in (*torch.randperm(rows).split(rows // 2), *torch.randperm(rows).split(rows // 2)):
        answers, advantages = batch["answer"][part], batch["advantage"][part, None]
        tokens = torch.cat([batch["prompt"][part], answers], 1)
        logs = policy(tokens)[:, PROMPT - 1 : -1].log_softmax(-1)
        there = answers != PAD
        ratio = (logs.gather(2, answers.clamp(max=END)[..., None])[..., 0] - batch["log_prob"][part]).exp()
        gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
        entropy = -(logs.exp() * logs).sum(-1)
        loss = -((gain + 0.02 * entropy) * there).sum() / there.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()


def columns(plane: dataplane.DataPlaneClient, meta: dataplane.BatchMeta) -> dict[str, torch.Tensor]:
    """What an update needs of a batch of whole groups: tokens, log-probabilities and advantages within the group."""
    pads = {"answer": PAD}
    found = dataplane.read_columns(plane, meta, FIELDS[1:], pad_to=LONGEST + 1, pad_values=pads, as_="torch")
    prompts = [row.tolist() for row in plane.get_samples(meta, ["prompt"])["prompt"]]
    rewards: dict[str, list[float]] = {}
    for group, one in zip(meta.group_ids or (), meta.tag("reward"), strict=True):
        rewards.setdefault(group, []).append(one)
    scale = {group: torch.tensor(values) for group, values in rewards.items()}
    advantages = [
        (one - scale[group].mean()) / (scale[group].std() + 1e-4)
        for group, one in zip(meta.group_ids or (), meta.tag("reward"), strict=True)
    ]
    return {**found, "prompt": laid_out(prompts), "advantage": torch.stack(advantages)}


def learn(max_staleness: int, target: float, most_s: float, seed: int) -> dict[str, float]:
    """Train until greedy answers reach the target; what came of it."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    staleness = dataplane.StalenessPolicy(GROUPS * GROUP, max_staleness, group_size=GROUP)
    policy = Transformer()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    exam = [make_prompt(random.Random(number)) for number in range(400)]
    counts = dataplane.DropCounts()
    useful = dataplane.All(staleness.filter(), dataplane.GroupFilter("reward"), counts=counts)
    version, score, waited, began = 0, 0.0, 0.0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder, dataplane.connect(f"mmap://{folder}/plane") as plane:
        plane.register_partition("rollouts", FIELDS, ["train"], **staleness.limits())
        publisher = weights.WeightPublisher(plane, readers=["generator"])
        publisher.publish(policy.state_dict(), version)
        generator = multiprocessing.get_context("spawn").Process(
            target=generate, args=(f"mmap://{folder}/plane", staleness, seed), daemon=True
        )
        generator.start()
        while score < target and time.monotonic() - began < most_s:
            asked = time.monotonic()
            try:
                batch = plane.claim_meta("rollouts", "train", FIELDS, GROUPS * GROUP, timeout_s=5)
            except dataplane.ClaimTimeoutError:
                if not generator.is_alive():
                    raise
                continue
            waited += time.monotonic() - asked if version else 0.0
            keep, drop = useful.split(batch, current_weight_version=version)
            plane.clear_samples("rollouts", drop.sample_ids, "useless")
            train(policy, optimizer, columns(plane, keep))
            version += 1
            plane.ack(keep, version=version)
            publisher.publish(policy.state_dict(), version)
            plane.commit("rollouts", "train", version)  # a real trainer writes its checkpoint first
            if version % 10 == 0:
                answers, _ = answered(policy, exam, greedy=True)
                score = sum(reward(*pair) for pair in zip(exam, answers, strict=True)) / len(exam)
                line = f"update {version}: reward {score:.3f}, sampled {sum(batch.tag('reward')) / batch.size:.3f}"
                print(f"max_staleness {max_staleness}: {line}, {time.monotonic() - began:.0f} s", flush=True)
        generator.terminate()
        generator.join()
    found = {"reward": score, "updates": version, "seconds": time.monotonic() - began, "waited": waited}
    return {**found, "ages": counts.plain()["kept"]["ages"], "dropped": counts.reasons}


def main() -> int:
    """0 if the target was reached, 1 if not."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--max-staleness", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--target", type=float, default=0.9, help="greedy reward at which to stop; 1 is the best")
    parser.add_argument("--seconds", type=float, default=300, help="stop after this long")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = {one: learn(one, options.target, options.seconds, options.seed) for one in options.max_staleness}
    print("\nmax_staleness  reward  updates  seconds  trainer waited  trained by age, dropped by reason")
    for one, row in found.items():
        times = f"{row['seconds']:7.1f}  {row['waited']:12.1f} s"
        print(f"{one:13}  {row['reward']:6.3f}  {row['updates']:7}  {times}  {row['ages']}, {row['dropped']}")
    return 0 if all(row["reward"] >= options.target for row in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
