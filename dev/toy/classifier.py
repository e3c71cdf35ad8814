"""Names the digit in a picture: a support vector machine on the same scans, the judge of what the model draws."""

from __future__ import annotations

from typing import Any

import torch

from .digits import enlarge, load_digits, shrink

AUGMENTED_COPIES = 3


def train_classifier(held_out: float = 0.0, seed: int = 0) -> tuple[Any, float]:
    """Return scikit-learn's classifier, and its accuracy on the share of scans that was ``held_out``."""
    from sklearn.svm import SVC

    scans, classes = load_digits()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(scans), generator=generator)
    test, train = order[: int(len(order) * held_out)], order[int(len(order) * held_out) :]
    pictures = [shrink(enlarge(scans[train]))]
    pictures += [shrink(enlarge(scans[train], generator)) for _ in range(AUGMENTED_COPIES)]
    machine = SVC(C=10.0, gamma="scale")
    machine.fit(torch.cat(pictures).flatten(1).numpy(), classes[train].repeat(AUGMENTED_COPIES + 1).numpy())
    if not len(test):
        return machine, float("nan")
    named = name_digits(machine, enlarge(scans[test]))
    return machine, float((named == classes[test]).float().mean())


def name_digits(classifier: Any, images: torch.Tensor) -> torch.Tensor:
    """Return the class of each 32x32 picture in -1..1."""
    return torch.from_numpy(classifier.predict(shrink(images).flatten(1).numpy()))
