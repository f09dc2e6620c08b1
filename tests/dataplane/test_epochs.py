"""To which epoch a producer belongs: to that of the weights which it has, and no later one."""

from __future__ import annotations

import asyncio

import pytest

from tunegym.dataplane import DataPlaneClient, attach, connect
from tunegym.dataplane.errors import EpochError

pytestmark = pytest.mark.invariant

URL = "memory://epochs"


@pytest.fixture
def trainer() -> DataPlaneClient:
    return connect(URL)


def rewound(trainer: DataPlaneClient) -> None:
    trainer.rewind("p", "train", 0)


def test_a_producer_is_of_the_epoch_in_which_it_came(trainer: DataPlaneClient) -> None:
    """It fetches weights when it has joined, and the rewind may come before its first put."""
    with trainer, attach(URL) as early:
        trainer.register_partition("p", ["x"], ["train"])
        with attach(URL) as producer:
            rewound(trainer)
            for one in (early, producer):
                with pytest.raises(EpochError):
                    one.put_samples("p", ["a"], {"x": [1]})
            producer.put_samples("p", ["a"], {"x": [1]})
            early.put_samples("p", ["b"], {"x": [1]})


def test_after_a_refusal_it_is_of_the_epoch_of_the_refusal(trainer: DataPlaneClient) -> None:
    """It fetches weights when it is refused, and the next rewind may come before its next put."""
    with trainer, attach(URL) as producer:
        trainer.register_partition("p", ["x"], ["train"])
        producer.put_samples("p", ["a"], {"x": [1]})
        rewound(trainer)
        with pytest.raises(EpochError):
            producer.put_samples("p", ["b"], {"x": [1]})
        rewound(trainer)
        with pytest.raises(EpochError):
            producer.put_samples("p", ["b"], {"x": [1]})
        producer.put_samples("p", ["b"], {"x": [1]})


def test_a_thread_with_old_weights_is_refused_after_another_was(trainer: DataPlaneClient) -> None:
    """Each thread says of which epoch its weights are; what one is told changes nothing for the others."""
    with trainer, attach(URL) as producer:
        trainer.register_partition("p", ["x"], ["train"])
        first, second = producer.epoch("p"), producer.epoch("p")
        rewound(trainer)
        with pytest.raises(EpochError):
            producer.put_samples("p", ["a"], {"x": [1]}, epoch=first)
        first = producer.epoch("p")
        producer.put_samples("p", ["a"], {"x": [1]}, epoch=first)
        with pytest.raises(EpochError):
            producer.put_samples("p", ["b"], {"x": [1]}, epoch=second)
        with pytest.raises(EpochError):
            asyncio.run(producer.put_samples_async("p", ["b"], {"x": [1]}, epoch=second))
        put = asyncio.run(producer.put_samples_async("p", ["b"], {"x": [1]}, lengths=[7], epoch=first))
        assert (put.epoch, put.sequence_lengths) == (1, (7,))
