"""The drop-in: how it is called, how its draws are distributed, how it is saved."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import safetensors.torch
import torch
from pyro.infer import Predictive
from scipy import stats
from torch import Tensor, nn

from pyro_opu import uncertainty
from pyro_opu.distillation import distill
from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.guides import GUIDES
from pyro_opu.guides.dirichlet import PredictiveGuide
from pyro_opu.parts import SiteLayout
from pyro_opu.predictive import OnePassPredictive
from pyro_opu.predictive.student_file import KIND
from pyro_opu.utils import files

OBS = SiteLayout("obs", "label", "int64", (-1,))
PROBS = SiteLayout("probs", "probs", "float32", (-1, 3))
D = 4


class Fixed(nn.Module):
    """A guide that answers every input with the Dirichlet its first three features name."""

    def forward(self, x: Tensor) -> dist.Dirichlet:
        return dist.Dirichlet(x[:, :3].exp())


def fixed(*sites: SiteLayout, num_samples: int = 4000) -> OnePassPredictive:
    return OnePassPredictive(Fixed(), (D,), 3, sites or (OBS,), num_samples)


def student(**changes: object) -> OnePassPredictive:
    x = torch.randn(8, D)
    guide = PredictiveGuide.for_inputs(x, 3, hidden=(8, 8)).requires_grad_(False).eval()
    settings = {
        "sites": (OBS, PROBS),
        "num_samples": 5,
        "arguments": ("x", "y"),
        "report": {"seed": 3},
    }
    return OnePassPredictive(guide, (D,), 3, **{**settings, **changes})


def model(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(D, 3), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Categorical(logits=x @ w), obs=y)


MISSING = object()


def places(tree: object, place: tuple = ()) -> list[tuple]:
    """Where every entry of nested dicts and lists stands."""
    entries = list(tree.items() if isinstance(tree, dict) else enumerate(tree))
    inside = [(key, value) for key, value in entries if isinstance(value, (dict, list))]
    below = [deep for key, value in inside for deep in places(value, (*place, key))]
    return [(*place, key) for key, _ in entries] + below


def replace(tree: object, place: tuple, value: object) -> None:
    """Put something else there, or take the entry out."""
    for key in place[:-1]:
        tree = tree[key]
    if value is MISSING:
        del tree[place[-1]]
    else:
        tree[place[-1]] = value


def same_answers(a: OnePassPredictive, b: OnePassPredictive, x: Tensor) -> bool:
    answers = []
    for fast in (a, b):
        torch.manual_seed(1)
        answers.append((fast(x), fast.dirichlet(x)))
    (sites, dirichlet), (other_sites, other) = answers
    return (
        list(sites) == list(other_sites)
        and all(torch.equal(sites[name], other_sites[name]) for name in sites)
        and torch.equal(dirichlet.log_mean, other.log_mean)
        and torch.equal(dirichlet.log_concentration, other.log_concentration)
    )


class TestCall:
    def test_input_comes_first_and_other_arguments_are_ignored(self) -> None:
        fast, x = student(), torch.randn(6, D)
        torch.manual_seed(1)
        expected = fast(x)
        for call in (
            lambda: fast(x, None),
            lambda: fast(x, torch.zeros(6), 3),
            lambda: fast(x=x),
            lambda: fast(y=None, x=x),
        ):
            torch.manual_seed(1)
            answer = call()
            assert list(answer) == ["obs", "probs"]
            assert all(torch.equal(answer[name], expected[name]) for name in expected)

    def test_input_picked_by_a_function(self) -> None:
        fast = student(inputs=lambda y, data, **_: data["x"].flatten(1))
        assert fast(None, {"x": torch.randn(6, 2, 2)}, other=1)["obs"].shape == (5, 6)

    def test_tuple_is_sorted_by_site(self) -> None:
        last = SiteLayout("a", "probs", "float64", (1, -1, 3))
        fast, x = student(sites=(OBS, last)), torch.randn(6, D)
        torch.manual_seed(1)
        first, second = fast.call(x)
        torch.manual_seed(1)
        answer = fast(x)
        assert torch.equal(first, answer["a"]) and torch.equal(second, answer["obs"])
        assert first.shape == (5, 1, 6, 3) and first.dtype == torch.float64

    def test_number_of_draws_can_be_set(self) -> None:
        fast, x = student(), torch.randn(6, D)
        for count in (1, 6, 7):
            fast.num_samples = count
            assert fast(x)["obs"].shape == (count, 6) and fast(x)["probs"].shape == (count, 6, 3)

    def test_any_number_of_inputs(self) -> None:
        for rows in (1, 5, 300):
            assert student()(torch.randn(rows, D))["probs"].shape == (5, rows, 3)

    def test_is_a_module_without_gradient_in_its_draws(self) -> None:
        fast, x = student(), torch.randn(6, D, requires_grad=True)
        fast.guide.requires_grad_(True)
        answer = fast(x)
        assert not any(value.requires_grad for value in answer.values())
        assert fast.dirichlet(x).log_mean.requires_grad
        assert "input (4,) -> 3 classes, sites [obs, probs], num_samples=5" in repr(fast)
        assert set(dict(fast.named_children())) == {"guide"}

    def test_precision_follows_the_student(self) -> None:
        fast, x = student(), torch.randn(6, D, dtype=torch.float64)
        assert fast.dirichlet(x).log_mean.dtype == torch.float32
        assert fast.double().dirichlet(x.float()).log_mean.dtype == torch.float64
        assert fast(x)["probs"].dtype == torch.float32  # as the layout says

    def test_dirichlet_and_uncertainty(self) -> None:
        fast, x = student(), torch.randn(6, D)
        dirichlet = fast.dirichlet(x)
        assert isinstance(dirichlet, PredictiveDirichlet) and dirichlet.batch_shape == (6,)
        assert isinstance(dirichlet, pyro.distributions.Dirichlet)
        measures = fast.uncertainty(x)
        assert torch.equal(measures.total, uncertainty(dirichlet).total)
        torch.testing.assert_close(measures.total, measures.aleatoric + measures.epistemic)

    def test_guide_of_ones_own_returns_any_dirichlet(self) -> None:
        x = torch.randn(6, D)
        torch.testing.assert_close(fixed().dirichlet(x).concentration, x[:, :3].exp())

    @pytest.mark.parametrize(("arguments", "named"), [(("x", "y"), r"\['x', 'y'\]"), ((), "none")])
    def test_keywords_that_the_model_lacks_are_refused(
        self, arguments: tuple[str, ...], named: str
    ) -> None:
        fast, x = student(arguments=arguments), torch.randn(6, D)
        message = rf"arguments of the model, {named}; got \['num_samples', 'flag'\]. Leave them out"
        with pytest.raises(TypeError, match=message):
            fast(x, num_samples=7, flag=True)
        open_call = student(arguments=("x", "**"))
        assert open_call(x, flag=True)["obs"].shape == open_call(x=x, any=3)["obs"].shape == (5, 6)

    def test_in_place_of_predictive(self) -> None:
        """The code around it does not change."""
        predictive = Predictive(model, {"w": torch.randn(9, D, 3)})
        fast = distill(
            predictive, torch.randn(40, D), loss="moments", num_steps=4, progress=False, seed=0
        )
        x = torch.randn(5, D)
        for answer in (predictive, fast):
            with pytest.raises(TypeError, match="flag"):
                answer(x, flag=True)
            labels = answer(x)["obs"]
            assert labels.shape == (9, 5) and labels.dtype == torch.int64
            assert answer.call(x)[0].shape == (9, 5)
            assert answer(x=x)["obs"].mode(0).values.shape == (5,)

    def test_input_on_another_device(self) -> None:
        with pytest.raises(
            ValueError, match="must be on meta, where the student is; got cpu. Move"
        ):
            student().to("meta")(torch.randn(6, D))


class TestDistribution:
    """Alpha is exp of the input's first three features, so the answers are known."""

    x = torch.tensor([[1.0, 0.0, -1.0, 0.0], [2.0, 2.0, 2.0, 0.0], [-2.0, -3.0, -1.0, 0.0]])

    def test_probs_have_the_marginals_of_the_dirichlet(self) -> None:
        probs, alpha = fixed(PROBS)(self.x)["probs"], self.x[:, :3].exp().double()
        for row in range(3):
            for k in range(3):
                beta = stats.beta(alpha[row, k], alpha[row].sum() - alpha[row, k])
                # Kolmogorov-Smirnov; nine of them give a false alarm 9e-5 of the time.
                assert stats.kstest(probs[:, row, k].double(), beta.cdf).pvalue > 1e-5

    def test_labels_are_drawn_from_the_probs_beside_them(self) -> None:
        answer = fixed(OBS, PROBS)(self.x)
        drawn = nn.functional.one_hot(answer["obs"], 3).float()
        # E (1[y = k] - pi_k) pi_k = 0 only if y follows its own pi; five standard errors, nine
        # comparisons: a false alarm 5e-6 of the time.
        gap = (drawn - answer["probs"]) * answer["probs"]
        assert (gap.mean(0).abs() < 5 * gap.std(0) / 4000**0.5).all()
        # And they do follow it: drawn from the mean, the gap would be minus the variance.
        assert ((drawn - drawn.mean(0)) * answer["probs"]).mean(0)[2].min() > 0.05

    def test_inputs_are_independent_given_x(self) -> None:
        probs = fixed(PROBS)(self.x[:1].expand(2, D))["probs"][..., 0]
        # A correlation of 4,000 independent pairs has standard error 1/sqrt(4000).
        assert abs(torch.corrcoef(probs.T)[0, 1]) < 5 / 4000**0.5

    def test_seeded_draws_repeat_and_others_differ(self) -> None:
        fast, answers = student(num_samples=50), []
        x = torch.randn(6, D)
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            answers.append(fast(x)["obs"])
        assert torch.equal(answers[0], answers[1]) and not torch.equal(answers[0], answers[2])

    @pytest.mark.parametrize("size", [-60.0, 60.0])
    def test_extreme_concentrations_give_legal_answers(self, size: float) -> None:
        answer = fixed(OBS, PROBS, num_samples=50)(torch.full((4, D), size))
        torch.testing.assert_close(answer["probs"].sum(-1), torch.ones(50, 4))
        assert answer["obs"].min() >= 0 and answer["obs"].max() <= 2


class TestFuse:
    """The same student in fewer operations."""

    def test_same_calls_same_answers(self) -> None:
        picker = lambda y, x: x  # noqa: E731
        fast, x = student(inputs=picker), torch.randn(6, D)
        quick = fast.fuse()
        torch.testing.assert_close(quick.dirichlet(x).mean, fast.dirichlet(x).mean)
        found, expected = quick.uncertainty(x).to_dict(), fast.uncertainty(x).to_dict()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)
        found, expected = quick(None, x), fast(None, x)
        assert found.keys() == expected.keys()
        for site, value in expected.items():
            assert found[site].shape == value.shape and found[site].dtype == value.dtype, site
        assert (
            quick.inputs is picker
            and repr(quick).partition("(guide)")[0] == (repr(fast).partition("(guide)")[0])
        )
        again = quick.fuse()
        assert torch.equal(again.dirichlet(x).mean, quick.dirichlet(x).mean)

    def test_the_student_is_as_it_was(self, tmp_path: Path) -> None:
        fast, x = student(), torch.randn(6, D)
        before, quick = fast.dirichlet(x), fast.fuse()
        kept = quick.dirichlet(x).mean
        assert torch.equal(fast.dirichlet(x).log_alpha, before.log_alpha)
        fast.guide.recalibrate(1.0)
        fast.guide.mean_head.bias.zero_().add_(torch.randn(3))
        fast.report["seed"] = 4
        assert torch.equal(quick.dirichlet(x).mean, kept) and quick.report == {"seed": 3}
        fast.save(tmp_path / "fast")
        assert same_answers(fast, OnePassPredictive.load(tmp_path / "fast"), x)

    @pytest.mark.parametrize("kind", GUIDES)
    def test_a_file_of_merged_weights_is_refused(self, tmp_path: Path, kind: str) -> None:
        guide = GUIDES[kind].for_inputs(torch.randn(8, D), 3, hidden=(8,))
        quick = OnePassPredictive(guide, (D,), 3).fuse()
        with pytest.raises(ValueError, match="before it was fused.*again after load"):
            quick.save(tmp_path / "fast")
        assert not (tmp_path / "fast").exists()

    def test_nothing_merged_is_a_file_as_any(self, tmp_path: Path) -> None:
        """Time stamps keep their centring, and these weights are laid out as described."""
        x = 1e9 + torch.randn(8, D, dtype=torch.float64)
        guide = GUIDES["mixture"].for_inputs(x.float(), 3, hidden=(8,))
        guide.trunk.fit_scale(x)
        quick = OnePassPredictive(guide, (D,), 3).fuse()
        quick.save(tmp_path / "fast")
        assert same_answers(quick, OnePassPredictive.load(tmp_path / "fast"), x)


class TestFile:
    @pytest.mark.parametrize("shape", [(D,), (1, 12, 12), (3, 2)])
    @pytest.mark.parametrize("shared", [True, False])
    def test_every_default_guide(
        self, tmp_path: Path, shape: tuple[int, ...], shared: bool
    ) -> None:
        x = torch.randn(6, *shape)
        fast = OnePassPredictive(PredictiveGuide.for_inputs(x, 3, shared=shared), shape, 3)
        fast.save(tmp_path / "fast")
        assert same_answers(fast, OnePassPredictive.load(tmp_path / "fast"), x)

    def test_precision_is_kept(self, tmp_path: Path) -> None:
        fast, x = student().double(), torch.randn(6, D, dtype=torch.float64)
        fast.save(tmp_path / "fast")
        again = OnePassPredictive.load(tmp_path / "fast")
        assert again.dirichlet(x).log_mean.dtype == torch.float64
        assert same_answers(fast, again, x)

    def test_text_header_and_no_pickle(self, tmp_path: Path) -> None:
        path = tmp_path / "fast"
        student().save(path)
        raw = path.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + size])
        config = json.loads(header["__metadata__"]["config"])
        assert (
            config["outcome"]["parts"][0]["num_classes"] == 3
            and config["sites"][0]["name"] == "obs"
        )
        # What follows the header is the numbers of the tensors, and nothing else.
        tensors = safetensors.torch.load_file(path)
        numbers = sum(value.numel() * value.element_size() for value in tensors.values())
        assert len(raw) == 8 + size + numbers

    def test_inputs_are_given_again(self, tmp_path: Path) -> None:
        student(inputs=lambda y, x: x).save(tmp_path / "fast")
        again = OnePassPredictive.load(tmp_path / "fast", inputs=lambda y, x: x)
        assert again(None, torch.randn(6, D))["obs"].shape == (5, 6)

    def test_guide_of_ones_own(self, tmp_path: Path) -> None:
        def build(classes: int = 3) -> PredictiveGuide:
            return PredictiveGuide(nn.Sequential(nn.Linear(D, 6), nn.Tanh()), 6, classes)

        fast, x = OnePassPredictive(build(), (D,), 3), torch.randn(6, D)
        fast.save(tmp_path / "fast")
        again = OnePassPredictive.load(tmp_path / "fast", guide=build())
        assert same_answers(fast, again, x)
        with pytest.raises(ValueError, match="`guide` must be given.*Build it and pass guide="):
            OnePassPredictive.load(tmp_path / "fast")
        with pytest.raises(
            ValueError, match="must have 3 classes, as the file; it has 5. Build it"
        ):
            OnePassPredictive.load(tmp_path / "fast", guide=build(5))
        other = nn.Sequential(nn.Linear(D, 6))
        before = other[0].weight.clone()
        with pytest.raises(ValueError, match=r"parameters of the file; these differ: \['0.bias'"):
            OnePassPredictive.load(tmp_path / "fast", guide=other)
        assert torch.equal(other[0].weight, before)

    def test_what_a_file_claims_is_checked_before_memory_is_taken(self, tmp_path: Path) -> None:
        student().save(tmp_path / "fast")
        tensors, config = files.read(tmp_path / "fast", KIND)
        for width in (10**6, 2**62):  # 4 TB, and more than there are numbers
            config["guide"]["trunk"]["hidden"] = [width, width]
            files.write(tmp_path / "large", KIND, tensors, config)
            with pytest.raises(ValueError, match="description is whole"):
                OnePassPredictive.load(tmp_path / "large")

    @pytest.mark.parametrize("kind", ["dirichlet", "mixture"])
    def test_a_damaged_description(self, kind: str, tmp_path: Path) -> None:
        """Every entry left out or turned into something else: an error that says so, or no harm."""
        path, x = tmp_path / "fast", torch.randn(4, D)
        fast = OnePassPredictive(GUIDES[kind].for_inputs(x, 3, hidden=(4,)), (D,), 3)
        fast.guide.eval()
        fast.save(path)
        tensors, whole = files.read(path, KIND)
        refused = 0
        for place in places(whole):
            if place[-1] == "activation":  # left out it has a meaning, ReLU
                continue
            for value in (MISSING, None, "text", -1, 10**30, [[7]]):
                config = copy.deepcopy(whole)
                replace(config, place, value)
                files.write(path, KIND, tensors, config)
                try:
                    again = OnePassPredictive.load(path)
                except ValueError as error:
                    assert "path" in str(error) or "guide` must be given" in str(error)
                    refused += 1
                else:
                    assert torch.equal(again.dirichlet(x).mean, fast.dirichlet(x).mean)
                    assert again(x).keys()
        assert refused > 100

    @pytest.mark.parametrize("plain", [None, 3, "text", [], [1, 2], {}])
    def test_a_description_of_another_form(self, tmp_path: Path, plain: object) -> None:
        files.write(tmp_path / "fast", KIND, {}, plain)
        with pytest.raises(ValueError, match="description is whole"):
            OnePassPredictive.load(tmp_path / "fast")

    def test_whole_numbers_are_no_weights(self, tmp_path: Path) -> None:
        student().save(tmp_path / "fast")
        tensors, config = files.read(tmp_path / "fast", KIND)
        tensors["mean_head.weight"] = tensors["mean_head.weight"].long()
        files.write(tmp_path / "fast", KIND, tensors, config)
        with pytest.raises(ValueError, match="these differ: .'mean_head.weight'"):
            OnePassPredictive.load(tmp_path / "fast")

    def test_foreign(self, tmp_path: Path) -> None:
        path = tmp_path / "other"
        safetensors.torch.save_file({"weight": torch.ones(3)}, path)
        with pytest.raises(ValueError, match="must be a one-pass predictive file.*holds unknown"):
            OnePassPredictive.load(path)
        torch.save({"weight": torch.ones(3)}, path)
        with pytest.raises(ValueError, match="corrupt or of another format"):
            OnePassPredictive.load(path)
        files.write(path, "distillation checkpoint", {"weight": torch.ones(3)}, {})
        with pytest.raises(ValueError, match="holds pyro_opu/distillation checkpoint"):
            OnePassPredictive.load(path)
        with pytest.raises(FileNotFoundError, match="does not exist"):
            OnePassPredictive.load(tmp_path / "none")

    def test_time_stamps_after_a_file(self, tmp_path: Path) -> None:
        """The location of float64 inputs is in the file, float32 though the weights are."""
        x = 1.7e12 + 3e4 * torch.randn(20, D, dtype=torch.float64)
        fast = OnePassPredictive(PredictiveGuide.for_inputs(x, 3, hidden=(8,)), (D,), 3)
        expected = fast.dirichlet(x).mean
        assert expected.dtype == torch.float32 and expected.std(0).min() > 0.01
        fast.save(tmp_path / "fast")
        found = OnePassPredictive.load(tmp_path / "fast").dirichlet(x).mean
        assert torch.equal(found, expected)

    def test_missing_folder_leaves_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="existing folder"):
            student().save(tmp_path / "none" / "fast")
        assert list(tmp_path.iterdir()) == []

    def test_interrupted_write_leaves_the_old_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, fast = tmp_path / "fast", student()
        fast.save(path)
        old = path.read_bytes()

        def interrupted(aside: Path, target: Path) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("os.replace", interrupted)
            student().save(path)
        assert path.read_bytes() == old and list(tmp_path.iterdir()) == [path]
        assert same_answers(fast, OnePassPredictive.load(path), torch.randn(6, D))

    @pytest.mark.gpu
    def test_on_the_gpu(self, tmp_path: Path) -> None:
        fast, x = student(), torch.randn(6, D)
        fast.to("cuda").save(tmp_path / "fast")
        again = OnePassPredictive.load(tmp_path / "fast", device="cuda")
        assert again(x.cuda())["probs"].device.type == "cuda"
        assert torch.equal(again.cpu().dirichlet(x).log_mean, fast.cpu().dirichlet(x).log_mean)


def test_what_else_a_predictive_has() -> None:
    fast, x = student(), torch.randn(3, D)
    assert fast.return_sites == tuple(fast(x)) == ("obs", "probs")
    assert fast.get_samples(x)["obs"].shape == fast(x)["obs"].shape == fast.call(x)[0].shape
    for name in ("posterior_samples", "model", "parallel", "get_vectorized_trace"):
        assert hasattr(Predictive(lambda x: None, num_samples=1), name)
        with pytest.raises(AttributeError, match=f"^{name}: a student .*; "):
            getattr(fast, name)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        getattr(fast, "other")  # noqa: B009
