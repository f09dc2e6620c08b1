"""``async_ppo``: PPO on rollouts that come when they come.

Collectors act with version *v* of the weights, or one of the ``max_staleness`` before it, while the learner makes
version *v + 1*. Admission keeps them from running further ahead, and a filter drops what became too old anyway.

Three policies are told apart (decoupled PPO): the one that acted, whose log-probabilities came with the rollout; the
proximal one, which is version *v*; and the one that is optimised. The clip is around the proximal policy. What the
acting one did more often than the proximal one would counts less, what it did less often counts more, up to
``importance_limit``. Advantages are GAE whose traces are cut where the policies differ (as in Retrace and V-trace).
With rollouts of version *v* itself all of this is plain PPO.

The order of a version: claim, drop what is stale, update, ``ack`` into the new version, publish its weights, admit;
every ``checkpoint_every`` versions a checkpoint, and then ``commit``. A learner that restarts publishes the weights of
its checkpoint and rewinds the plane to it: so every rollout counts once in the weights that survive.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import orjson
import torch
from gymnasium import spaces

from tunegym import dataplane
from tunegym.asyncrl.admission import Gate
from tunegym.asyncrl.collector import FIELDS
from tunegym.asyncrl.lanes import Collectors, LiveLanes, TrialLanes
from tunegym.asyncrl.policy import ActorCritic
from tunegym.asyncrl.ranks import ATTEMPTS, Ranks
from tunegym.asyncrl.weights import WeightPublisher
from tunegym.core.errors import BudgetError, ServerLostError
from tunegym.dataplane import BatchMeta, DataPlaneClient
from tunegym.dataplane.errors import ClaimTimeoutError, LeaseLostError, SampleError
from tunegym.dataplane.model import WEIGHT_VERSION
from tunegym.dataplane.staleness import versions_of
from tunegym.dataplane.storage import BlockGoneError
from tunegym.tuning.agents.base import TrainingError
from tunegym.tuning.agents.live_learner import DIVERGED, HORIZON, LINES, Draws, LiveTraining
from tunegym.tuning.agents.trial_learner import TrialLearner, TrialTraining
from tunegym.tuning.model.trial import Trial
from tunegym.tuning.ports import Env, LiveEnv

logger = logging.getLogger(__name__)

PARTITION, TASK = "rollouts", "train"
LOG = "async.jsonl"
"""Beside the journal: a line for each version, and the account at the end."""
MOST = 1 << 30
CLAIM_S = 0.5
"""While the learner waits for a batch, it looks this often whether the collectors have ended."""
BETAS, TINY = (0.9, 0.999), 1e-5


# the update -------------------------------------------------------------------------------------------


def read_batch(
    plane: DataPlaneClient, meta: BatchMeta, offsets: Sequence[int], rewards: Sequence[Any] | None = None
) -> dict[str, torch.Tensor]:
    """Rollouts of one rank, padded: a row for each, and a column for each step; observations have one more.

    ``rewards`` replaces those that were recorded. ``offsets`` are the places of first steps among those of all ranks.
    """
    found = dataplane.read_columns(plane, meta, FIELDS[:4], as_="torch")
    for row, values in enumerate(rewards or ()):
        found["reward"][row, : len(values)] = torch.tensor(values)
    known = {"length": meta.sequence_lengths, "terminated": meta.tag("terminated"), "offset": offsets}
    return found | {name: torch.tensor(values) for name, values in known.items()}


class Update:
    """The weights, the optimizer (Adam) and one version's update. The same on every rank.

    ``reduce`` sums a tensor over all ranks, in place. Losses are divided by the number of steps on all ranks, so the
    sum of the gradients doesn't depend on how the rollouts are spread.
    """

    def __init__(
        self, policy: ActorCritic, config: Any, seed: int, reduce: Callable[[torch.Tensor], Any] = lambda _: None
    ) -> None:
        self._policy, self._config, self._seed, self._reduce = policy, config, seed, reduce
        self.weights = torch.zeros(policy.size, requires_grad=True)
        self._first, self._second = torch.zeros(policy.size), torch.zeros(policy.size)
        self._steps = 0

    def state(self) -> dict[str, Any]:
        """The weights, both moments of Adam, and its steps."""
        vectors = torch.stack([self.weights.data, self._first, self._second])
        return {"vectors": vectors.numpy(), "steps": self._steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The reverse of ``state``."""
        self.weights.data, self._first, self._second = (torch.tensor(one) for one in state["vectors"])
        self._steps = int(state["steps"])

    def run(self, batch: Mapping[str, torch.Tensor], total: int, version: int, rate: float) -> dict[str, float]:
        """Make ``version`` from ``total`` steps, of which ``batch`` has some; ``rate`` is the learning rate."""
        config, policy = self._config, self._policy
        rows = self._rows(batch)
        moments = torch.tensor([rows["advantage"].sum(), (rows["advantage"] ** 2).sum()], dtype=torch.float64)
        self._reduce(moments)
        mean, square = (moments / total).tolist()
        spread = max(square - mean * mean, 0.0) ** 0.5
        rows["advantage"] = (rows["advantage"] - mean) / (spread + 1e-8)
        where = torch.full((total,), -1, dtype=torch.int64)
        where[rows["place"]] = torch.arange(len(rows["place"]))
        sums = torch.zeros(4, dtype=torch.float64)
        for epoch in range(config.n_epochs):
            order = np.random.default_rng([self._seed, version, epoch]).permutation(total)
            for some in np.array_split(order, max(1, round(total / config.minibatch))):
                mine = where[torch.as_tensor(some)]
                mine = mine[mine >= 0]
                seen, chosen, advantage = (rows[name][mine] for name in ("seen", "chosen", "advantage"))
                log_prob, entropy = policy.judged(self.weights, seen, chosen, torch)
                values = policy.values(self.weights, seen, torch)
                change = log_prob - rows["log_prob"][mine]
                ratio = torch.exp(change)
                clipped = torch.clamp(ratio, 1.0 - config.clip_range, 1.0 + config.clip_range)
                gain = rows["weight"][mine] * torch.minimum(ratio * advantage, clipped * advantage)
                error = (values - rows["target"][mine]) ** 2
                loss = (-gain + config.vf_coef * error - config.ent_coef * entropy).sum() / len(some)
                self.weights.grad = None
                loss.backward()
                self._step(rate)
                parts = -gain, error, entropy, ratio - 1.0 - change
                sums += torch.stack([one.detach().sum() for one in parts]).double()
        self._reduce(sums)
        if not bool(torch.isfinite(self.weights).all()):
            raise TrainingError(DIVERGED)
        names = ("policy_gradient_loss", "value_loss", "entropy", "approx_kl")
        told = zip(names, (sums / (total * config.n_epochs)).tolist(), strict=True)
        return {**{f"train/{name}": value for name, value in told}, "train/learning_rate": rate}

    def _step(self, rate: float) -> None:
        """One step of Adam along the gradients of all ranks."""
        slope = self.weights.grad
        assert slope is not None
        self._reduce(slope)
        slope *= min(1.0, self._config.max_grad_norm / (float(slope.norm()) + 1e-6))
        self._steps += 1
        (one, two), steps = BETAS, self._steps
        self._first.mul_(one).add_(slope, alpha=1.0 - one)
        self._second.mul_(two).addcmul_(slope, slope, value=1.0 - two)
        self.weights.data -= (
            rate * (self._first / (1.0 - one**steps)) / ((self._second / (1.0 - two**steps)).sqrt() + TINY)
        )

    def _rows(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """A row for each step: advantages, values to aim at, importance weights, and places among all steps."""
        policy, config = self._policy, self._config
        seen, chosen, acted, reward = (batch[name] for name in FIELDS[:4])
        lengths, terminated = batch["length"], batch["terminated"]
        count, longest = reward.shape
        with torch.no_grad():
            values = policy.values(self.weights, seen, torch)
            flat = seen[:, :-1].reshape(-1, policy.inputs), chosen.reshape(count * longest, -1)
            proximal = policy.judged(self.weights, *flat, torch)[0].reshape(count, longest)
            importance = torch.exp(proximal - acted)
            trace = config.gamma * config.gae_lambda * importance.clamp(max=1.0)
            advantage, following = torch.zeros_like(reward), torch.zeros(count)
            for at in reversed(range(longest)):
                last = lengths == at + 1
                after = torch.where(last & terminated, 0.0, values[:, at + 1])
                own = reward[:, at] + config.gamma * after - values[:, at]
                later = trace[:, at + 1] * following if at + 1 < longest else following
                following = torch.where(last, own, own + later)
                advantage[:, at] = following
        steps = torch.arange(longest)
        there = steps < lengths[:, None]
        return {
            "seen": seen[:, :-1][there],
            "chosen": chosen[there],
            "log_prob": proximal[there],
            "weight": importance.clamp(max=config.importance_limit)[there],
            "advantage": advantage[there],
            "target": (values[:, :-1] + advantage)[there],
            "place": (batch["offset"][:, None] + steps)[there],
        }


# the learner ------------------------------------------------------------------------------------------


class AsyncLearner(TrialLearner):
    """The learner. Its own loop, ``learn``, trains it; ``counts`` are of rollouts and steps that made this version."""

    off_policy = False

    def __init__(self, config: Any, seed: int, inputs: int, actions: spaces.Space[Any]) -> None:
        super().__init__()
        self._config = config
        self._draws = Draws(seed, "async_ppo")
        self._discrete = isinstance(actions, spaces.Discrete)
        self.policy = ActorCritic.for_space(inputs, actions, tuple(config.net_arch))
        self.continuous = not self.policy.heads
        self.version = 0
        self.counts: Counter[str] = Counter()
        first = self.policy.first_weights(np.random.default_rng(self._draws.integer(2**63, "weights")))
        self._state: dict[str, Any] = {"vectors": np.stack([first, 0.0 * first, 0.0 * first]), "steps": 0}

    @property
    def weights(self) -> np.ndarray:
        """The weights of the present version."""
        return self._state["vectors"][0]

    def greedy(self, seen: np.ndarray) -> tuple[Any, float | None]:
        """The most probable choice."""
        chosen, chance = self.policy.greedy(self.weights, seen)
        return (chosen[0] if self._discrete else chosen), chance

    def preference(self, seen: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Their probabilities."""
        again = np.broadcast_to(seen, (len(elements), len(seen)))
        return np.exp(self.policy.judged(self.weights, again, elements.reshape(len(elements), -1))[0])

    def state(self) -> dict[str, Any]:
        """Weights, optimizer, network, version and counts."""
        numbers = {"steps": self._state["steps"], "version": self.version, "counts": dict(self.counts)}
        return {"vectors": torch.tensor(self._state["vectors"]), "policy": asdict(self.policy), **numbers}

    def restore(self, state: dict[str, Any]) -> None:
        """The reverse of ``state``. Raises ``ValueError`` if it is of another network."""
        if state["vectors"].shape != (3, self.policy.size):
            raise ValueError(f"{state['vectors'].shape[-1]} weights for a network of {self.policy.size}")
        self._state = {"vectors": state["vectors"].numpy(), "steps": int(state["steps"])}
        self.version, self.counts = int(state["version"]), Counter(state["counts"])
        self.trained = self.version > 0

    # the loop -----------------------------------------------------------------------------------------

    def learn(
        self,
        env: Env | LiveEnv,
        lanes: LiveLanes | TrialLanes,
        progress: Callable[[], float],
        save: Callable[[], bool],
        told: Callable[[Mapping[str, float]], None],
        rewards: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        """Learn until no collector can take a further step. Raises what ended it earlier.

        ``progress`` is the used share of the budget. ``save`` writes a checkpoint of ``state``; whether it is there.
        ``told`` hears of each version's numbers. ``rewards`` replaces those of the rollouts, by the numbers of steps.
        """
        config, staleness = self._config, self._config.policy()
        count = config.num_collectors or env.slots
        if count > env.slots:
            raise TrainingError(f"num_collectors = {count} need a lane each: write slots = {count} under [system]")
        options = config.plane.options(env.folder)
        with contextlib.ExitStack() as opened:
            plane = opened.enter_context(dataplane.connect(**options))
            options["url"] = plane.url
            plane.register_partition(PARTITION, FIELDS, [TASK], **staleness.limits())
            publisher = WeightPublisher(plane)
            publisher.publish(self.weights, self.version)
            plane.rewind(PARTITION, TASK, self.version)
            plane.commit(PARTITION, TASK, self.version)
            # Those of an earlier plane, which ended with its cluster. What it had besides is not known.
            elsewhere = self.counts["trained"] - plane.stats()[PARTITION]["gone"].get("consumed", 0)
            there = [one for one in plane.list_samples(PARTITION, limit=MOST) if one["state"][TASK] == "free"]
            gate = Gate(staleness, self.version, {one["sample_id"]: one["tags"][WEIGHT_VERSION] for one in there})
            ranks = Ranks(self.policy, config, self._draws.integer(2**32, "order"), options)
            ranks.state = self._state
            opened.callback(ranks.close)
            log = opened.enter_context((env.folder / LOG).open("ab", buffering=0))
            write = lambda line: log.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))  # noqa: E731
            write({"session": time.time(), "version": self.version, "collectors": count})
            setup = {"plane": options, "partition": PARTITION, "policy": asdict(self.policy), "n_steps": config.n_steps}
            saved, idle, failures = self.version, 0.0, 0
            collectors = Collectors(lanes, count, gate, setup, env.folder, self._draws)
            opened.callback(collectors.close)
            while True:
                asked = time.monotonic()
                batch = self._claim(plane, gate, publisher, collectors)
                if batch is None:
                    break
                claimed = time.monotonic()
                left = 1.0 - progress() if config.learning_rate_schedule == "linear" else 1.0
                rate, read = config.learning_rate * max(0.0, left), partial(plane.get_samples, batch, ["number"])
                try:
                    given = None if rewards is None else [rewards(one) for one in read()["number"]]
                    values = ranks.run(batch, given, self.version + 1, rate, read)
                    plane.ack(batch, version=self.version + 1)
                except (LeaseLostError, SampleError, BlockGoneError) as error:
                    failures += 1  # rollouts are gone, or another learner may have them: this version must not be
                    if failures > ATTEMPTS:
                        what = f"{failures} batches in a row were lost: {error.message}"
                        raise TrainingError(f"{what}; is lease_s shorter than an update?") from error
                    logger.warning("version %d is made again: %s", self.version + 1, error.message)
                    ranks.close()
                    ranks.state = self._state
                    self._give_back(plane, gate, batch)
                    continue
                failures = 0
                ages = {str(self.version - one): many for one, many in sorted(versions_of(batch).items())}
                steps = sum(batch.sequence_lengths or ())
                self._state, self.version, self.trained = ranks.state, self.version + 1, True
                self.counts.update(trained=batch.size, trained_steps=steps)
                publisher.publish(self.weights, self.version)
                gate.advance(self.version, batch)
                took, waited = time.monotonic() - asked, sum(gate.waited_s.values())
                shares = {"learner_idle": (claimed - asked) / took, "collectors_idle": (waited - idle) / (count * took)}
                idle, age = waited, sum(int(age) * many for age, many in ages.items()) / batch.size
                numbers = {"version": self.version, "staleness": age, "dropped": self.counts["stale"], **shares}
                told({**values, **{f"async/{name}": float(value) for name, value in numbers.items()}})
                line = {"seconds": took, "samples": batch.size, "steps": steps, "ages": ages, **numbers}
                write({**line, "restarts": [collectors.restarts, ranks.restarts]})
                if self.version - saved >= config.checkpoint_every and save():
                    saved = self.version
                    plane.commit(PARTITION, TASK, saved)
            collectors.close()
            if self.version > saved and save():
                plane.commit(PARTITION, TASK, self.version)
            write({"account": {**self._account(plane, elsewhere), "cut": gate.cut}})

    def _claim(
        self, plane: DataPlaneClient, gate: Gate, publisher: WeightPublisher, collectors: Collectors
    ) -> BatchMeta | None:
        """A whole batch that is fresh enough; None if there won't be one. While it waits, it replaces what is lost."""
        fresh: list[BatchMeta] = []
        stale = dataplane.StalenessFilter(self._config.max_staleness)
        while (wanted := self._config.batch - sum(meta.size for meta in fresh)) > 0:
            ending = collectors.over
            try:
                found = plane.claim_meta(PARTITION, TASK, FIELDS, wanted, timeout_s=CLAIM_S)
            except ClaimTimeoutError:
                known = gate.there
                gate.lose(known.difference(one["sample_id"] for one in plane.list_samples(PARTITION, limit=MOST)))
                publisher.restore()
                if not ending:
                    continue
                for meta in fresh:
                    self._give_back(plane, gate, meta)
                return None
            gate.claimed(found)
            keep, drop = stale.split(found, current_weight_version=self.version)
            if drop.size:
                plane.clear_samples(PARTITION, drop.sample_ids, "stale")
                gate.drop(drop)
                self.counts["stale"] += drop.size
            fresh.append(keep)
        return BatchMeta.concat(fresh)

    def _give_back(self, plane: DataPlaneClient, gate: Gate, batch: BatchMeta) -> None:
        """Release what is still held of a batch. What is gone is found missing when too few are claimed."""
        for at in range(batch.size):
            with contextlib.suppress(LeaseLostError):
                plane.release(batch.subset([at]), attempt=False)
        gate.give_back(batch)

    def _account(self, plane: DataPlaneClient, elsewhere: int) -> dict[str, Any]:
        """``produced = trained + dropped + lost + left``, where ``trained`` is our word and the rest the plane's."""
        found = plane.stats()[PARTITION]
        dropped = {why: many for why, many in found["gone"].items() if why not in ("consumed", "lost")}
        counts = {"produced": elsewhere + found["produced"], "trained": self.counts["trained"], "dropped": dropped}
        counts |= {"lost": found["gone"].get("lost", 0), "left": found["alive"]}
        return {**counts, "trained_steps": self.counts["trained_steps"], "version": self.version}


# experiments ------------------------------------------------------------------------------------------


class AsyncTrials(TrialTraining):
    """Trains on trials."""

    _learner: AsyncLearner

    def run(self, warm: Sequence[Trial]) -> None:
        """Take in the trials on record, then train to the end of the budget."""
        horizon = self._env.experiment.most_trials or HORIZON
        self._lock = threading.Lock()
        self._places: dict[int, int] = {}  # of trials in the experience, by number
        self._recall(warm)
        with contextlib.closing(TrialLanes(self._env, self._flat, self._view, self._took)) as lanes:
            self._learner.learn(self._env, lanes, lambda: self.closed / horizon, self._save, self._log, self._scaled)
        self._finish()

    def _record(self, trial: Trial) -> None:
        self._places[trial.number] = len(self._experience)
        super()._record(trial)

    def _took(self, trial: Trial) -> None:
        with self._lock:
            self._record(trial)
            self.closed += 1

    def _log(self, values: Mapping[str, float]) -> None:
        self._files.log(self.closed, values)

    def _scaled(self, numbers: np.ndarray) -> np.ndarray:
        with self._lock:
            return self._experience.rewards()[[self._places[int(number)] for number in numbers]]


class AsyncLive(LiveTraining):
    """Trains on a live system."""

    _learner: AsyncLearner

    def __init__(self, env: LiveEnv, name: str, config: Any, seed: int) -> None:
        super().__init__(env, name, config, seed)
        self._seed = seed
        self._lanes = LiveLanes(env)

    def _restore(self) -> int:
        def build(_: str | None) -> AsyncLearner:
            return AsyncLearner(self._config, self._seed, self._lanes.inputs, self._lanes.choices)

        self._learner, saved = self._files.restored(build, AsyncLearner.restore)
        return saved

    def _remember(self) -> int | None:
        return None

    def _learn(self) -> Exception | None:
        used = lambda: self._env.taken / self._horizon  # noqa: E731
        try:
            self._learner.learn(self._env, self._lanes, used, self._checkpoint, self._log)
        except (BudgetError, ServerLostError) as cause:
            return cause
        return None

    def _log(self, values: Mapping[str, float]) -> None:
        self._trained = True
        if self._env.taken - self._logged >= self._horizon // LINES:
            self._logged = self._env.taken
            self._files.log(self._logged, values)

    def _checkpoint(self) -> bool:
        self._saved = self._env.taken
        return self._files.save(type(self._lanes.choices).__name__, self._learner.state(), self._saved)

    def _save_policy(self, taken: int) -> None:
        self._checkpoint()

    def _train_on_rest(self) -> None:
        """What is no whole batch stays in the plane."""
