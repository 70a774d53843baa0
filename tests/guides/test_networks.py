"""Default networks: what they are chosen by, and how they standardise what they see."""

from __future__ import annotations

import pytest
import torch
from widest import Held

from pyro_opu.guides.dirichlet import PredictiveGuide
from pyro_opu.guides.networks import (
    Convolutions,
    Indexed,
    Perceptron,
    Standardize,
    centres,
    default_trunk_config,
    in_blocks,
)
from pyro_opu.guides.normal import GaussianGuide
from pyro_opu.guides.trunks import build_trunk


@pytest.mark.parametrize(
    ("shape", "kind", "hidden"),
    [
        ((1,), "perceptron", [128, 128, 128]),
        ((16,), "perceptron", [128, 128, 128]),
        ((64,), "perceptron", [256, 256, 256]),
        ((784,), "perceptron", [512, 512, 512]),
        ((4, 5), "perceptron", [256, 256, 256]),
        ((28, 28), "convolutions", [32, 64, 128]),
        ((1, 28, 28), "convolutions", [32, 64, 128]),
        ((3, 9, 11), "convolutions", [32, 64, 128]),
        ((3, 9, 4), "perceptron", [256, 256, 256]),  # too small an image
        ((2, 3, 8, 8), "perceptron", [512, 512, 512]),  # not an image
    ],
)
def test_default_trunk(shape: tuple[int, ...], kind: str, hidden: list[int]) -> None:
    x = torch.rand(3, *shape)
    config = default_trunk_config(x)
    assert config == {
        "kind": kind,
        "input_shape": list(shape),
        "hidden": hidden,
        "activation": "silu",
    }
    trunk, width = build_trunk(config)
    assert isinstance(trunk, {"perceptron": Perceptron, "convolutions": Convolutions}[kind])
    for rows in (1, 3):
        assert trunk(x[:rows]).shape == (rows, width)


def test_a_description_without_activation_is_of_the_time_when_it_was_relu() -> None:
    for x in (torch.randn(2, 3), torch.rand(2, 8, 8)):
        config = default_trunk_config(x)
        kinds = {}
        for name in ("silu", "relu", None):
            config.pop("activation", None)
            trunk, _ = build_trunk(config if name is None else {**config, "activation": name})
            kinds[name] = {type(layer) for layer in trunk.modules()}
        assert torch.nn.SiLU in kinds["silu"] and torch.nn.ReLU not in kinds["silu"]
        assert kinds[None] == kinds["relu"] and torch.nn.ReLU in kinds["relu"]


def test_hidden_widths_are_followed() -> None:
    image = torch.rand(2, 1, 8, 8)
    assert default_trunk_config(image, (3, 4, 5))["kind"] == "convolutions"
    assert default_trunk_config(image, (30, 20))["kind"] == "perceptron"
    trunk, width = build_trunk(default_trunk_config(torch.randn(2, 3), ()))
    assert width == 3 and not list(trunk.parameters())


def standardised(x: torch.Tensor) -> torch.Tensor:
    layer = Standardize(tuple(x.shape[1:]))
    layer.fit(x, (0,))
    return layer(x)


def test_standardised_features_have_mean_zero_and_deviation_one() -> None:
    x = torch.randn(500, 4) * torch.tensor([1e-4, 1.0, 30.0, 1e4]) + torch.tensor([0.0, 5, -2, 1e5])
    z = standardised(x)
    # float32: a mean of 10 deviations (the last) costs one of the seven digits.
    torch.testing.assert_close(z.mean(0), torch.zeros(4), rtol=0, atol=1e-5)
    torch.testing.assert_close(z.std(0, correction=0), torch.ones(4), rtol=1e-5, atol=0)


@pytest.mark.parametrize("unit", [1e-6, 1e-2, 1e3])
def test_a_feature_in_its_own_unit_is_not_lost(unit: float) -> None:
    x = torch.randn(200, 3)
    x[:, 2] *= unit
    torch.testing.assert_close(
        standardised(x)[:, 2].std(correction=0), torch.ones(()), rtol=1e-5, atol=0
    )


def test_a_faint_pixel_does_not_explode() -> None:
    x = torch.rand(200, 20)
    x[:, 7] = 0.0
    x[3, 7] = 1e-3
    layer = Standardize((20,))
    layer.fit(x, (0,))
    outside = torch.full((1, 20), 0.9)
    # Deviations of uniforms are 0.29, so 0.9 is about three of them on a pixel that was dark.
    assert layer(outside).abs().max() < 4


@pytest.mark.parametrize("value", [0.0, 0.1, -3.7, 1e6])
def test_a_constant_feature_gets_the_typical_scale(value: float) -> None:
    x = torch.randn(1000, 3) * 2
    x[:, 1] = value
    layer = Standardize((3,))
    layer.fit(x, (0,))
    # Rounding of the mean of a constant in float32, in units of the deviation 2.
    torch.testing.assert_close(
        layer(x)[:, 1], torch.zeros(1000), rtol=0, atol=1e-6 * max(1, abs(value))
    )
    spread = x[:, [0, 2]].std(0, correction=0)
    assert 0.99 / spread.max() < layer.scale[1] < 1.01 / spread.min()


class TestFloat64:
    """A time stamp in milliseconds, 1.7e12 with a spread of 30 s, has no digits in float32."""

    STAMPS = 1.7e12 + 3e4 * torch.randn(500, 2, dtype=torch.float64)

    @pytest.mark.parametrize("weights", [torch.float32, torch.float64])
    def test_centred_before_it_is_rounded(self, weights: torch.dtype) -> None:
        layer = Standardize((2,))
        layer.fit(self.STAMPS, (0,))
        z = layer.to(weights)(self.STAMPS)
        std, mean = torch.std_mean(self.STAMPS, 0, correction=0)
        assert z.dtype == weights
        # The location has 48 bits, of which 1.7e12 takes 41: 1/128 ms of 3e4; the scale has 24.
        torch.testing.assert_close(z.double(), (self.STAMPS - mean) / std, rtol=2e-7, atol=4e-7)

    def test_location_survives_changes_of_dtype_and_a_file(self) -> None:
        trunk = Perceptron((2,), (3,))
        trunk.fit_scale(self.STAMPS)
        expected = trunk.standardize(self.STAMPS)
        assert {value.dtype for value in trunk.state_dict().values()} == {torch.float32}
        again = Perceptron((2,), (3,))
        again.load_state_dict(trunk.double().float().state_dict())
        assert torch.equal(again.standardize(self.STAMPS), expected)

    def test_float32_is_centred_as_it_was(self) -> None:
        x = torch.randn(50, 3) * 4 + 100
        layer = Standardize((3,))
        layer.fit(x, (0,))
        assert torch.equal(layer(x), (x - layer.shift) * layer.scale)

    def test_a_constant_gets_no_scale_of_its_own(self) -> None:
        x = torch.cat([self.STAMPS, torch.full((500, 1), 0.1, dtype=torch.float64)], 1)
        layer = Standardize((3,))
        layer.fit(x, (0,))
        assert 2e4 < 1 / layer.scale[2] < 4e4  # that of the others

    def test_inputs_that_float32_cannot_hold_are_refused(self) -> None:
        trunk = Perceptron((2,), (3,))
        with pytest.raises(ValueError, match=r"in torch.float32, at most 3.4e\+38; got up to"):
            trunk.fit_scale(torch.tensor([[1e39, 0.0]], dtype=torch.float64))

    def test_what_centres(self) -> None:
        x = torch.randn(5, 2)
        assert centres(PredictiveGuide.for_inputs(x, 3, shared=False))
        assert centres(GaussianGuide.for_inputs(x, x[:, 0]))
        mixed = PredictiveGuide(Perceptron((2,), (3,)), 3, 3, torch.nn.Linear(2, 4), 4)
        assert not centres(mixed) and not centres(torch.nn.Linear(2, 3))


def test_one_input_and_constant_inputs() -> None:
    for x in (torch.tensor([[1.0, -5.0]]), torch.full((9, 2), 3.0)):
        assert torch.equal(standardised(x), torch.zeros_like(x))


def test_image_channels_are_standardised_each() -> None:
    x = torch.rand(50, 3, 8, 8) * torch.tensor([1.0, 0.01, 255.0])[:, None, None]
    trunk = Convolutions((3, 8, 8), (2, 2, 2))
    trunk.fit_scale(x)
    z = trunk.standardize(x)
    torch.testing.assert_close(z.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-5)  # rounding
    torch.testing.assert_close(z.std((0, 2, 3), correction=0), torch.ones(3), rtol=1e-5, atol=0)


def test_standardisation_is_saved_and_is_no_parameter() -> None:
    trunk = Perceptron((3,), (4,))
    trunk.fit_scale(torch.randn(20, 3) * 5 + 2)
    assert {"standardize.shift", "standardize.scale"} <= set(trunk.state_dict())
    assert not any("standardize" in name for name, _ in trunk.named_parameters())


def test_unfitted_standardisation_is_the_identity() -> None:
    x = torch.randn(4, 3)
    assert torch.equal(Standardize((3,))(x), x)


def test_every_column_of_a_wide_table_in_mixed_units_has_its_own_scale() -> None:
    z = standardised(torch.randn(200, 12) * torch.logspace(-4, 4, 12))
    torch.testing.assert_close(z.std(0, correction=0), torch.ones(12), rtol=1e-5, atol=0)


@pytest.mark.parametrize(("values", "least", "most"), [(2, 2, 2), (100, 8, 16), (5000, 16, 64)])
def test_an_index_of_many_values_is_embedded_in_some_tens_of_numbers(values, least, most) -> None:
    trunk = Indexed((2,), (8,), indices=[(1, range(values))])
    assert least <= trunk.embeddings[0].embedding_dim <= most


@pytest.mark.parametrize(
    ("off", "unit", "near"),
    [(3.0, 1.0, True), (1000.0, 1.0, False), (0.0, 1e-9, True), (0.0, 1e-25, False)],
)
def test_weights_standardise_too_where_no_more_than_a_few_bits_are_lost(off, unit, near) -> None:
    """Not a column that lies a thousand deviations from zero, or in a unit near float32's end."""
    layer = Standardize((3,))
    layer.fit(unit * (torch.randn(200, 3) + off), (0,))
    assert layer.near is near


def test_a_pixel_of_little_contrast_has_its_own_scale() -> None:
    z = standardised(torch.rand(200, 20) * torch.linspace(0.2, 1.0, 20))
    torch.testing.assert_close(z.std(0, correction=0), torch.ones(20), rtol=1e-5, atol=0)


def test_blocks_of_rows_are_joined_beside_one_another() -> None:
    x = torch.randn(3000, 40)
    with Held() as held:
        found = in_blocks(torch.sin, x)
    assert torch.equal(found, x.sin()) and held.bytes < 1.2 * x.nbytes
