"""Transfer policies: where the inputs of each fall, and what each image kind does."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from posteriors import VECTOR_POLICIES, smooth_images
from widest import Widest

from pyro_opu.transfer import (
    Box,
    Differences,
    Gaussian,
    HeldOut,
    ImageCorruption,
    Jitter,
    Mixture,
    Mixup,
    Permute,
    Recombine,
    Shuffle,
    Stretch,
    default_transfer,
)
from pyro_opu.transfer.corruptions import GREY, IMAGE_KINDS
from pyro_opu.transfer.policy import split_count


def test_scalar_inputs_are_rows_too() -> None:
    x = torch.rand(10)
    for policy in VECTOR_POLICIES:
        assert policy.fit(x).sample(4).shape == (4,)


def test_held_out_and_permute_keep_rows() -> None:
    x = torch.arange(24.0).view(6, 4)
    drawn = HeldOut().fit(x).sample(200)
    assert {tuple(row.tolist()) for row in drawn} == {tuple(row.tolist()) for row in x}
    permuted = Permute().fit(x).sample(200)
    assert torch.equal(permuted.sort(dim=1).values[:, 0] % 4, torch.zeros(200))
    orders = {tuple((row % 4).tolist()) for row in permuted}
    # 24 orders, 200 rows: a given order is missed with probability (23/24)**200 = 2e-4
    assert len(orders) > 20


def test_jitter_moves_near_and_far_and_keeps_constant_features() -> None:
    x = torch.cat([torch.randn(500, 20) * torch.tensor([1.0, 10.0] * 10), torch.ones(500, 1)], 1)
    drawn = Jitter(scale=10.0, min_scale=0.01).fit(x[:1].expand(2, -1)).sample(50)
    torch.testing.assert_close(drawn, x[:1].expand(50, -1))  # no spread in x, no noise
    fitted = Jitter(scale=10.0, min_scale=0.01).fit(x)
    rows = fitted.sample(400)
    assert torch.equal(rows[:, -1], torch.ones(400))
    distance = torch.cdist((rows / x.std(0))[:, :20], (x / x.std(0))[:, :20]).amin(dim=1)
    # per-row scales are log-uniform over three decades: a third below 0.1 and a third above 1;
    # at 20 features the nearest row is the row itself up to a noise of about 1 standard deviation
    assert 0.2 < (distance < 0.1 * math.sqrt(20)).float().mean() < 0.45
    assert 0.2 < (distance > 1.0 * math.sqrt(20)).float().mean() < 0.45


def test_mixup_stays_in_the_convex_hull_and_fills_it() -> None:
    x = torch.tensor([[-1.0], [0.5], [4.0]], dtype=torch.float64)
    drawn = Mixup().fit(x).sample(2000)
    assert drawn.min() >= -1
    assert drawn.max() <= 4
    between = ((drawn > 1.0) & (drawn < 3.5)).double().mean()
    assert between > 0.1
    ends = Mixup(alpha=0.01).fit(x).sample(300)
    near = (ends - x.T).abs().amin(dim=1) < 0.05
    assert near.double().mean() > 0.9  # Beta(0.01, 0.01) leaves about 4 % between its ends
    pair = torch.tensor([[0.0, 0.0], [1.0, 2.0]])
    mixed = Mixup().fit(pair).sample(50)
    torch.testing.assert_close(mixed[:, 1], 2 * mixed[:, 0])  # on the segment, not in the box


def test_box_is_the_expanded_bounding_box() -> None:
    x = torch.tensor([[0.0, 10.0, 3.0], [1.0, 30.0, 3.0]], dtype=torch.float64)
    inside = Box(expand=0.0).fit(x).sample(1000)
    assert (inside >= x.amin(0)).all()
    assert (inside <= x.amax(0)).all()
    wide = Box(expand=0.5).fit(x).sample(4000)
    low = torch.tensor([-0.5, 0.0, 3.0], dtype=torch.float64)
    high = torch.tensor([1.5, 40.0, 3.0], dtype=torch.float64)
    assert (wide >= low).all()
    assert (wide <= high).all()
    # extremes of 4000 uniform draws lie within 1 % of the ends, but for a chance of 4e-18 each
    torch.testing.assert_close(wide.amin(0), low, atol=0.4, rtol=0)
    torch.testing.assert_close(wide.amax(0), high, atol=0.4, rtol=0)


def test_shuffle_keeps_the_marginals_and_breaks_the_dependence() -> None:
    column = torch.randn(50, dtype=torch.float64)
    x = torch.stack([column, 2 * column, torch.ones_like(column)], dim=1)
    drawn = Shuffle().fit(x).sample(4000)
    for k in range(3):
        assert torch.isin(drawn[:, k], x[:, k]).all()
    counts = (drawn[:, :1] == x[:, 0]).double().sum(0)
    chi2 = ((counts - 80) ** 2 / 80).sum()
    assert chi2 < 100  # chi-square with 49 degrees of freedom: exceeded with probability 3e-5
    correlation = torch.corrcoef(drawn[:, :2].T)[0, 1]
    assert abs(correlation) < 0.08  # 5 standard errors of 1/sqrt(4000)


def test_gaussian_rows_have_factors_of_their_own() -> None:
    x = torch.randn(200, 1000, dtype=torch.float64)
    drawn = Gaussian(scale=2.0, max_scale=32.0).fit(x).sample(4000)
    size = ((drawn - x.mean(0)) / x.std(0, correction=0)).std(1)
    logs = size.log() / math.log(2)
    # 1,000 features say a row's factor within 10 %, 4.5 standard errors: 0.15 of a doubling.
    assert logs.min() > 1 - 0.15 and logs.max() < 5 + 0.15
    # Uniform between 1 and 5: 5 standard errors of the mean of 4,000, and of their deviation.
    assert abs(logs.mean() - 3) < 5 * 4 / math.sqrt(12 * 4000)
    assert abs(logs.std() - 4 / math.sqrt(12)) < 0.05


@pytest.mark.parametrize("n", [1, 2, 3, 7, 100])
def test_split_count(n: int) -> None:
    weights = [0.5, 3.0, 1.5]
    total = torch.zeros(3)
    for _ in range(2000):
        counts = split_count(n, weights)
        assert sum(counts) == n
        assert all(abs(c - n * w / 5) < 1 + 1e-9 for c, w in zip(counts, weights, strict=True))
        total += torch.tensor(counts)
    shares = torch.tensor([n * w / 5 for w in weights])
    # a count differs from its share by less than 1: 5 standard errors of the mean of 2000 are 0.11
    torch.testing.assert_close(total / 2000, shares, atol=0.11, rtol=0)


def test_mixture_proportions_and_order() -> None:
    x = torch.zeros(5, 1)
    parts = [(1, HeldOut()), (2, Box()), (5.0, Mixup())]
    assert Mixture(parts).fit(x).sample(8).shape == (8, 1)

    # Two policies that can be told apart: the rows 1 and 2, and a far blob.
    x = torch.tensor([[1.0], [2.0]])
    far = Mixture([(1, HeldOut()), (1, Box(expand=1e6))])
    nested = Mixture([(1, HeldOut()), (3, far)]).fit(x)
    drawn = nested.sample(800).squeeze(1)
    held_out = torch.isin(drawn, x).float()
    assert held_out.sum() == 500  # 1/4 + 3/4 * 1/2
    # shuffled: the first half holds its fair share (hypergeometric, standard deviation 6.8)
    assert abs(held_out[:400].sum() - 250) < 35


def test_mixture_takes_a_generator_and_compares_by_value() -> None:
    parts = [(1, HeldOut()), (2, Jitter(0.5))]
    mixture = Mixture(pair for pair in parts)
    assert mixture == Mixture(parts)
    assert hash(mixture) == hash(Mixture(tuple(parts)))
    expected = "Mixture(components=((1, HeldOut()), (2, Jitter(scale=0.5, min_scale=0.01))))"
    assert repr(mixture) == expected


@pytest.mark.parametrize("kind", IMAGE_KINDS)
def test_image_kind_stays_in_range_and_changes_the_image(kind: str) -> None:
    x = smooth_images()
    drawn = ImageCorruption((kind,), depth=1).fit(x).sample(200)
    assert drawn.min() >= x.min()
    assert drawn.max() <= x.max()
    nearest = torch.cdist(drawn.flatten(1), x.flatten(1)).amin(dim=1)
    # patch_shuffle leaves one 2 x 2 permutation in 24 as it is: 2 % of its rows on average
    assert (nearest > 1e-3).float().mean() > 0.9


@pytest.mark.parametrize("kind", sorted(set(IMAGE_KINDS) - {"invert", "paste"}))
def test_image_kind_has_parameters_per_row(kind: str) -> None:
    x = smooth_images(1)
    drawn = ImageCorruption((kind,), depth=1).fit(x).sample(100).flatten(1)
    different = len(torch.unique(drawn, dim=0))
    # dilate and erode have two radii, patch_shuffle 24 coarse orders beside the fine ones
    few = {"dilate": 2, "erode": 2, "flip": 3}
    assert different == few[kind] if kind in few else different > 50


def test_depth_is_the_largest_number_of_kinds() -> None:
    x = torch.zeros(1, 16, 16)
    x[0, 8, 8] = 1.0  # each dilation widens this square by 1 or 2 on every side
    for depth in (1, 2, 3):
        drawn = ImageCorruption(("dilate",), depth=depth).fit(x).sample(400)
        widths = drawn.sum(dim=(1, 2)).sqrt()
        assert set(widths.tolist()) == {2.0 * radius + 1 for radius in range(1, 2 * depth + 1)}


def _slow_dilate(image: torch.Tensor, radius: int) -> torch.Tensor:
    height, width = image.shape
    result = torch.empty_like(image)
    for i, j in itertools.product(range(height), range(width)):
        rows = range(max(0, i - radius), min(height, i + radius + 1))
        columns = range(max(0, j - radius), min(width, j + radius + 1))
        result[i, j] = max(image[r, c] for r in rows for c in columns)
    return result


@pytest.mark.parametrize(("kind", "sign"), [("dilate", 1), ("erode", -1)])
def test_dilation_and_erosion_equal_the_loop(kind: str, sign: int) -> None:
    images = torch.randn(12, 2, 6, 7)
    out = IMAGE_KINDS[kind](images, images.min(), images.max())
    used = set()
    for image, result in zip(images.flatten(0, 1), out.flatten(0, 1), strict=True):
        slow = [sign * _slow_dilate(sign * image, radius) for radius in (1, 2)]
        matches = [torch.equal(result, expected) for expected in slow]
        assert any(matches)
        used.add(matches.index(True))
    assert used == {0, 1}


def test_threshold_invert_contrast_and_noise_by_formula() -> None:
    images, low, high = smooth_images(), torch.tensor(-0.5), torch.tensor(1.5)
    binary = IMAGE_KINDS["threshold"](images, low, high)
    assert torch.isin(binary, torch.stack([low, high])).all()
    dark, bright = images.where(binary == low, low), images.where(binary == high, high)
    assert (dark.amax((1, 2, 3)) <= bright.amin((1, 2, 3))).all()
    torch.testing.assert_close(IMAGE_KINDS["invert"](images, low, high), 1.0 - images)
    stretched = IMAGE_KINDS["contrast"](images, low, high)
    middle = images.mean((1, 2, 3), keepdim=True)
    torch.testing.assert_close(stretched.mean((1, 2, 3), keepdim=True), middle)
    factor = stretched.std((1, 2, 3)) / images.std((1, 2, 3))
    assert 0.2 - 1e-4 <= factor.min()
    assert factor.max() <= 5 + 1e-4
    added = (IMAGE_KINDS["noise"](images, low, high) - images).std((1, 2, 3))
    # noise of 0.02 to 0.6 times the range of 2, estimated from 240 pixels: 5 standard errors, 23 %
    assert 0.04 * 0.77 < added.min()
    assert added.max() < 1.2 * 1.23


def test_patch_shuffle_moves_patches_whole() -> None:
    images = torch.arange(2 * 9 * 10.0).view(1, 2, 9, 10).expand(60, 2, 9, 10)
    shuffled = IMAGE_KINDS["patch_shuffle"](images, images.min(), images.max())
    assert torch.equal(shuffled.flatten(1).sort(dim=1).values, images.flatten(1))
    assert torch.equal(shuffled[:, 1] - shuffled[:, 0], torch.full((60, 9, 10), 90.0))
    assert torch.equal(shuffled[:, :, 8], images[:, :, 8])  # 9 = 2 * 4 + 1: the last row stays
    # rows 0 and 1, 2 and 3, ... share a patch in the 2 x 2 (4 rows high) and 4 x 4 (2 rows) grids
    assert torch.equal(shuffled[:, 0, 1:8:2] - shuffled[:, 0, 0:8:2], torch.full((60, 4, 10), 10.0))
    assert (shuffled != images).flatten(1).any(dim=1).sum() > 50  # 1 in 48 is left as it is


def test_blobs_are_smooth_fields_from_clouds_to_two_valued() -> None:
    images, low, high = smooth_images(300, 1, 24, 24), torch.tensor(-0.5), torch.tensor(1.5)
    fields = IMAGE_KINDS["blobs"](images, low, high)
    assert fields.min() >= low
    assert fields.max() <= high
    extreme = ((fields < -0.4) | (fields > 1.4)).float().mean((1, 2, 3))
    assert (extreme > 0.9).any()  # nearly two-valued
    assert (extreme < 0.2).any()  # clouds
    step = (fields.diff(dim=3) ** 2).mean((1, 2, 3)) / (2 * fields.var((1, 2, 3)) + 1e-12)
    assert step.median() < 0.5  # white noise has 1: neighbours are much alike


def test_blobs_ignore_the_content_of_the_image() -> None:
    images, low, high = smooth_images(), torch.tensor(-0.5), torch.tensor(1.5)
    torch.manual_seed(2)
    first = IMAGE_KINDS["blobs"](images, low, high)
    torch.manual_seed(2)
    assert torch.equal(IMAGE_KINDS["blobs"](torch.zeros_like(images), low, high), first)


def _names(mixture: Mixture) -> list[str]:
    return [type(policy).__name__ for _, policy in mixture.components]


def test_stretched_rows_lie_on_the_line_through_the_mean() -> None:
    x = torch.randn(1, 5, dtype=torch.float64) + torch.arange(3.0)[:, None].double()
    drawn, mean = Stretch(factor=3.0).fit(x).sample(4000), x.mean(0)
    # Rows 0 and 2 are mean -+ 1, row 1 the mean itself: every draw is mean + r (1, ..., 1).
    offset = drawn - mean
    torch.testing.assert_close(offset, offset[:, :1].expand_as(offset))
    size = offset[:, 0].abs()
    moved = size > 1e-9
    assert abs(float(moved.double().mean()) - 2 / 3) < 0.04  # 5 sigma of a share at 4,000
    logs = size[moved].log() / math.log(3.0)
    assert logs.min() >= -1 - 1e-9 and logs.max() <= 1 + 1e-9
    assert abs(float(logs.mean())) < 0.06 and abs(float(logs.std()) - 3**-0.5) < 0.03  # uniform


def test_rows_are_moved_by_differences_of_neighbours() -> None:
    # Two pairs far apart: the only neighbour of a row is 1 away in its pair.
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [50.0, 50.0], [51.0, 50.0]], dtype=torch.float64)
    drawn = Differences(neighbours=1).fit(x).sample(8000)
    moved = (drawn[:, None] - x).abs()
    along = (moved.amin(-1) == 0) & (moved.amax(-1) <= 1)  # one column, by at most 1
    assert along.any(1).all()
    down = drawn[drawn[:, 1] < 0, 1]  # row 0, by u times -1, u uniform
    assert len(down) / 8000 == pytest.approx(1 / 16, abs=0.012)
    assert float(-down.mean()) == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("rows", [1, 2, 3000])
def test_differences_of_few_rows_and_of_many(rows: int) -> None:
    x = torch.randn(rows, 2, 3)
    policy = Differences().fit(x)
    drawn, near = policy.sample(50), policy.buffers["near"]
    assert drawn.shape == (50, 2, 3) and drawn.isfinite().all()
    assert near.shape == (min(rows, 2048), min(10, max(1, rows - 1)))


def test_neighbours_of_wide_rows_are_sought_among_few() -> None:
    x = torch.randn(40, 3, 224, 224)
    with Widest() as widest:
        policy = Differences().fit(torch.cat([x] * 3))
    assert len(policy.buffers["near"]) == 111
    assert widest.bytes < 2 * x.nbytes * 3


@pytest.mark.parametrize("constant", [0.0, -0.42, 1e3])
def test_a_feature_that_does_not_vary_moves_no_neighbour(constant: float) -> None:
    """As the border of images that were normalised."""
    x = torch.randn(60, 6)
    scaled = x / x.std(0, correction=0)
    apart = torch.cdist(scaled, scaled).fill_diagonal_(torch.inf)
    beside = torch.full((60, 1), constant)
    near = Differences().fit(torch.cat([x, beside], 1)).buffers["near"]
    assert torch.equal(near, apart.topk(10, largest=False).indices)


def test_default_for_tables() -> None:
    x = torch.randn(50, 6)
    policy = default_transfer(x)
    assert not policy.fitted
    assert _names(policy) == [
        "HeldOut", "Mixup", "Jitter", "Stretch", "Box", "Shuffle", "Gaussian", "Gaussian",
    ]  # fmt: skip
    assert math.isclose(sum(weight for weight, _ in policy.components), 1.0)
    assert policy.fit(x).sample(64).shape == (64, 6)


def test_default_permutes_only_features_of_one_scale() -> None:
    pixels = torch.rand(50, 64)
    pixels[:, :20] = 0.0  # dark borders do not matter
    assert "Permute" in _names(default_transfer(pixels))
    assert "Permute" not in _names(default_transfer(pixels - 0.5))
    assert "Permute" not in _names(default_transfer(pixels * torch.logspace(-3, 3, 64)))
    assert "Permute" not in _names(default_transfer(torch.rand(50, 4)))


@pytest.mark.parametrize("shape", [(8, 8), (1, 28, 28), (3, 9, 8)])
def test_default_for_images(shape: tuple[int, ...]) -> None:
    x = torch.rand(20, *shape)
    policy = default_transfer(x)
    assert "ImageCorruption" in _names(policy)
    assert policy.fit(x).sample(32).shape == (32, *shape)
    flat = default_transfer(x.flatten(1), image_shape=shape).fit(x.flatten(1)).sample(32)
    assert flat.shape == (32, x[0].numel())


def test_colours_are_moved_where_there_are_several_channels() -> None:
    kinds = [
        policy.kinds
        for shape in ((3, 16, 16), (1, 16, 16), (16, 16))
        for _, policy in default_transfer(torch.rand(20, *shape)).components
        if isinstance(policy, ImageCorruption)
    ]
    assert kinds == [tuple(IMAGE_KINDS), GREY, GREY]
    assert "paste, occlude, blur and 12 more" in default_transfer(torch.rand(9, 3, 8, 8)).made


def test_pasted_and_covered_windows_by_the_loop() -> None:
    """What is not its own is a rectangle, of the image before or of one colour."""
    images = torch.rand(40, 3, 20, 20, dtype=torch.float64)
    for kind in ("paste", "occlude"):
        done = IMAGE_KINDS[kind](images, torch.tensor(0.0), torch.tensor(1.0))
        for k, (image, other) in enumerate(zip(done, images.roll(1, 0), strict=True)):
            rows, columns = (image != images[k]).all(0).nonzero().T
            assert len(rows) and rows.unique().numel() <= 14 and columns.unique().numel() <= 14
            assert len(rows) == rows.unique().numel() * columns.unique().numel()
            inside = image[:, rows, columns]
            source = other[:, rows, columns] if kind == "paste" else inside[:, :1]
            torch.testing.assert_close(inside, source.expand_as(inside))


def test_colours_mix_by_formula() -> None:
    """Every channel stays affine in those of the image, the same at all of its pixels."""
    images = torch.rand(6, 3, 9, 9, dtype=torch.float64)
    done = IMAGE_KINDS["colour"](images, torch.tensor(0.0), torch.tensor(1.0))
    for image, found in zip(images.flatten(2), done.flatten(2), strict=True):
        design = torch.cat([image, torch.ones(1, 81)]).T.double()
        fit = torch.linalg.lstsq(design, found.T).solution
        torch.testing.assert_close(design @ fit, found.T)
        gains = fit[:3].sum(0)  # weights of a mean add up to 1
        assert bool(((gains > 0.499) & (gains < 2.001)).all()) and bool((fit[:3] > 0).all())


def test_default_takes_short_sequences_for_tables() -> None:
    assert "ImageCorruption" not in _names(default_transfer(torch.rand(20, 16, 4)))
    with pytest.raises(TypeError, match=r"x\.float\(\)"):
        default_transfer(torch.ones(20, 8, 8, dtype=torch.uint8))


@pytest.mark.gpu
def test_on_the_gpu() -> None:
    x = torch.rand(64, 1, 12, 12, device="cuda")
    fitted = default_transfer(x).fit(x)
    state = torch.get_rng_state(), torch.cuda.get_rng_state()
    first = fitted.sample(100)
    torch.set_rng_state(state[0])
    torch.cuda.set_rng_state(state[1])
    assert first.device == x.device
    assert torch.equal(fitted.sample(100), first)


def test_recombined_rows_keep_to_their_columns_and_mostly_to_a_row() -> None:
    x = torch.arange(40.0).reshape(8, 5)
    drawn = Recombine().fit(x).sample(4000)
    assert all(torch.isin(drawn[:, k], x[:, k]).all() for k in range(5))
    kept = (drawn[:, None] == x).sum(-1).amax(-1)  # columns of the nearest row
    assert set(kept.tolist()) == {1, 2, 3, 4, 5} or set(kept.tolist()) == {2, 3, 4, 5}
    # A column is redrawn with probability E u^2 = 1 / 3, of which 1 / 8 gives the same value.
    redrawn = 1 - (drawn == drawn.div(5, rounding_mode="floor").mode(1).values[:, None] * 5
                   + torch.arange(5.0)).double().mean()  # fmt: skip
    assert 0.2 < float(redrawn) < 1 / 3
    trees = default_transfer(x, in_steps=True)
    assert isinstance(trees, Mixture) and trees.components[0] == (0.5, Recombine())
    indexed = default_transfer(x, indices=[0], in_steps=True).fit(x).sample(500)
    assert torch.isin(indexed[:, 0], x[:, 0]).all()
