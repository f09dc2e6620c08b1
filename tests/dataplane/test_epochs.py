"""To which epoch a producer belongs: to that of the weights which it has, and no later one."""

from __future__ import annotations

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
