"""The default transfer policy."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pyro_opu.checks import check_inputs, sizes
from pyro_opu.inputs import Form
from pyro_opu.transfer.corruptions import GREY, IMAGE_KINDS, ImageCorruption
from pyro_opu.transfer.features import (
    Box,
    Differences,
    Gaussian,
    HeldOut,
    Jitter,
    Mixup,
    Permute,
    Recombine,
    Seen,
    Shuffle,
    Stretch,
)
from pyro_opu.transfer.indices import Asked, check_indices
from pyro_opu.transfer.policy import Mixture, TransferPolicy
from pyro_opu.transfer.tokens import Spans, padding
from pyro_opu.utils.images import are_images, flattened_shape, look_exchangeable

__all__ = ["default_transfer"]


def default_transfer(
    x: Tensor,
    image_shape: tuple[int, ...] | None = None,
    *,
    indices: Sequence[int] = (),
    in_steps: bool = False,
) -> TransferPolicy:
    """Choose a policy that suits x, for tabular inputs or for images, unfitted.

    Inputs of shape (channels, H, W), or (H, W) unless they look like sequences
    (:func:`pyro_opu.utils.images.are_images`), with both sides at least 8, or any inputs with an
    ``image_shape``, are images: 24 % held-out rows, 20 % moved by differences of neighbours, 36 %
    corruptions, and 4 to 8 % each of mixed, jittered, boxed and pixel-permuted rows. Images of
    several channels are also cropped, mirrored, recoloured, blurred, covered and pasted into one
    another. Everything else is tabular: 35 % held-out, 20 % mixed, 13 % jittered, 14 % stretched
    rows, and the rest from a box, shuffled columns and wide Gaussians. Permuted rows join these
    where the features look exchangeable, as flattened pixels do: at least 8 of them, none negative,
    and at least half reaching half of the largest value.

    Args:
        x: Transfer inputs ``(N, *input_shape)``, floating and finite.
        image_shape: (H, W) or (channels, H, W) where x holds flattened images; by default found
            by their neighbours.
        indices: Columns of x ``(N, D)`` that hold an index, which is never made up
            (:class:`~pyro_opu.transfer.Seen`).
        in_steps: Whether the teacher's answers are constant in pieces, as those of trees are: half
            of the rows are then recombined (:class:`~pyro_opu.transfer.Recombine`).
    """
    if in_steps:
        inner = default_transfer(x, image_shape, indices=indices)
        return Mixture(
            [(0.5, Seen(Recombine(), indices) if indices else Recombine()), (0.5, inner)]
        )
    if indices:
        held = [column for column in range(x.shape[1]) if column not in indices]
        if not held:
            return Mixture([(0.5, HeldOut()), (0.5, Shuffle())])
        inner = default_transfer(x[:, held])
        assert isinstance(inner, Mixture)
        kept = [(w, policy) for w, policy in inner.components if not isinstance(policy, Permute)]
        return Seen(Mixture(kept), indices)
    check_inputs(x, features=False)
    if image_shape is not None:
        sizes("image_shape", image_shape)
    else:
        image_shape = flattened_shape(x)
    if image_shape is not None or are_images(x):
        shape = image_shape or tuple(x.shape[1:])
        kinds = tuple(IMAGE_KINDS) if len(shape) == 3 and shape[0] > 1 else GREY
        return Mixture(
            [
                (0.24, HeldOut()),
                (0.20, Differences()),
                (0.36, ImageCorruption(kinds, image_shape=image_shape)),
                (0.08, Mixup()),
                (0.04, Jitter()),
                (0.04, Box(expand=0.0)),
                (0.04, Permute()),
            ]
        )
    components: list[tuple[float, TransferPolicy]] = [
        (0.35, HeldOut()),
        (0.20, Mixup()),
        (0.13, Jitter()),
        (0.14, Stretch()),
        (0.045, Box(expand=0.25)),
        (0.045, Shuffle()),
        (0.045, Gaussian(scale=2.0)),
        (0.045, Gaussian(scale=4.0)),
    ]
    return Mixture([*components, (0.05, Permute())] if look_exchangeable(x) else components)


def transfer_for(
    x: Tensor,
    transfer: TransferPolicy | None,
    form: Form,
    stream: Asked | None = None,
    *,
    in_steps: bool = False,
    codes: Sequence[int] = (),
) -> TransferPolicy:
    """The user's policy or the default one, unfitted, which makes up no index.

    By default columns that the teacher uses as one are refused, where its ``stream`` is given.
    """
    indices = sorted({*form.index_columns, *codes})
    if transfer is None:
        if stream is not None and not form.indices and not in_steps:
            check_indices(stream, x)
        lengths = [part.columns for part in form.parts]
        tokens = 0 < sum(lengths) == len(form.index_columns) and not in_steps
        if tokens and any(padding(part) is not None for part in x.split(lengths, 1)):
            return Mixture([(0.5, HeldOut()), (0.5, Spans(lengths))])
        transfer = default_transfer(x, indices=indices, in_steps=in_steps)
        indices = [] if not form.blanks else indices
    return Seen(transfer, indices, form.blanks) if indices else transfer
