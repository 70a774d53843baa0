"""Students as folders."""

from __future__ import annotations

import inspect
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pyro_opu import OnePassPredictive, PredictiveGuide, distill, fidelity
from pyro_opu.predictive.folder import model_card

pytestmark = pytest.mark.usefixtures("brief")

torch.manual_seed(0)
X, W = torch.randn(80, 3), torch.randn(40, 3, 4)
QUICK: dict[str, Any] = {"num_steps": 20, "seed": 0, "progress": False}


def teacher(x: torch.Tensor) -> torch.Tensor:
    return (x @ W).softmax(-1)


@pytest.fixture(scope="module")
def fast() -> OnePassPredictive:
    return distill(teacher, X, **QUICK)


@pytest.fixture
def folder(fast: OnePassPredictive, tmp_path: Path) -> Path:
    fast.save(f"{tmp_path / 'student'}/")
    return tmp_path / "student"


def test_a_folder_holds_weights_description_and_card(fast: OnePassPredictive, folder: Path) -> None:
    assert {each.name for each in folder.iterdir()} == {
        "model.safetensors",
        "config.json",
        "README.md",
    }
    for path in (folder, str(folder), f"{folder}/", folder / "model.safetensors"):
        loaded = OnePassPredictive.load(path)
        assert torch.equal(loaded.dirichlet(X).mean, fast.dirichlet(X).mean)
    config = json.loads((folder / "config.json").read_text())
    assert (config["input_shape"], config["outcome"]) == (
        [3],
        {"parts": [{"kind": "classes", "site": "", "shape": [], "num_classes": 4}]},
    )
    fast.save(folder)  # again


def test_a_card_says_what_the_report_knows(fast: OnePassPredictive, folder: Path) -> None:
    card = (folder / "README.md").read_text()
    header = card.split("---")[1]
    assert "library_name: pyro_opu" in header
    assert "license: other" in header
    assert "pipeline_tag: tabular-classification" in header
    assert str(fast.report) in card
    found = fidelity(fast, teacher, X)
    full = model_card(fast, fidelity=found, data="made up", license="mit", name="Mine")
    assert "license: mit" in full
    assert "# Mine" in full
    assert "- Data: made up." in full
    assert str(found) in full
    fast.save(folder, card=full)
    assert (folder / "README.md").read_text() == full


def test_what_save_refuses(fast: OnePassPredictive, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="existing folder"):
        fast.save(f"{tmp_path}/a/b/")
    with pytest.raises(ValueError, match="`card` needs a folder"):
        fast.save(tmp_path / "one.safetensors", card="text")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        fast.save(f"{tmp_path / 'file'}/")


@pytest.mark.parametrize("name", ["README.md", "config.json", "model.safetensors"])
@pytest.mark.parametrize("of", ["student/", "one.safetensors"])
def test_files_of_others_are_kept(
    fast: OnePassPredictive, tmp_path: Path, name: str, of: str
) -> None:
    fast.save(tmp_path / of if of == "one.safetensors" else f"{tmp_path}/{of}")
    mine = tmp_path / "student" / name if of == "student/" else tmp_path / of
    before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    for text in ("# Three years of notes", '{"guide": "mine"}', "library_name: other"):
        mine.write_text(text)
        with pytest.raises(ValueError, match=rf"has {mine.name}\..*overwrite=True"):
            fast.save(mine.parent if of == "student/" else mine)
        assert mine.read_text() == text
        others = {path: path.read_bytes() for path in before if path != mine}
        assert others == {path: content for path, content in before.items() if path != mine}
    fast.save(mine.parent if of == "student/" else mine, overwrite=True)
    assert {len(each) for each in before.values()} == {path.stat().st_size for path in before}


def test_a_folder_of_others_gets_nothing(
    fast: OnePassPredictive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "README.md").write_text("# Mine")
    (tmp_path / "config.json").write_text('{"mine": 1}')
    monkeypatch.chdir(tmp_path)
    for path in (".", "./", tmp_path, str(tmp_path)):
        with pytest.raises(ValueError, match=r"has config\.json, README\.md"):
            fast.save(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["README.md", "config.json"]


def test_what_is_a_students_own_is_replaced(fast: OnePassPredictive, tmp_path: Path) -> None:
    """A former student, a card of its own words saved twice, an edited one, and empty files."""
    folder = tmp_path / "student"
    fast.save(folder if folder.mkdir() else folder, card="My words.")
    fast.save(folder, card="My words.")
    with pytest.raises(ValueError, match=r"has README\.md"):
        fast.save(folder, card="Other words.")
    fast.save(folder, overwrite=True)
    card = folder / "README.md"
    card.write_text(card.read_text() + "More.")
    fast.save(folder)
    assert card.read_text() == model_card(fast)
    card.write_text("")
    fast.save(folder)
    assert card.read_text() == model_card(fast)


def test_a_checkpoint_is_no_student(fast: OnePassPredictive, tmp_path: Path) -> None:
    distill(teacher, X, **QUICK, checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match="has run"):
        fast.save(tmp_path / "run")


def test_weights_come_first(
    fast: OnePassPredictive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("pyro_opu.utils.files.put", full)
    with pytest.raises(OSError, match="no space"):
        fast.save(f"{tmp_path}/student/")
    assert not list((tmp_path / "student").iterdir())


@pytest.mark.parametrize("license", ["mit\ninjected: yes", "mit # x", "", "x: y", "a" + "\u2028b"])
def test_a_license_is_an_identifier(fast: OnePassPredictive, license: str) -> None:
    if license:
        with pytest.raises(ValueError, match="`license` must be an identifier"):
            model_card(fast, license=license)
    else:
        assert "license: other" in model_card(fast, license=license)


def test_text_of_a_card_stays_in_its_place(fast: OnePassPredictive) -> None:
    copied = OnePassPredictive(fast.guide, (3,), 4, report={"taught_by": "T\n## Injected\n```"})
    card = model_card(copied, name="x\n---\nlicense: evil", data="``` \n# H", fidelity="````\n# F")
    header, body = card.split("\n---\n", 1)
    assert "evil" not in header
    fenced = [part for part in body.split("`````") if "# F" in part]
    assert fenced == ["text\n````\n# F\n"]
    headings = [line for line in body.splitlines() if line.startswith("#")]
    assert [line for line in headings if "Injected" in line or line == "# H"] == []


class Hub:
    """The calls of huggingface_hub, on folders of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def HfApi(self, token: str | None) -> Hub:  # noqa: N802
        return self

    def create_repo(self, repo_id: str, *, private: bool | None, exist_ok: bool) -> SimpleNamespace:
        (self.root / repo_id).mkdir(parents=True, exist_ok=exist_ok)
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(
        self, *, repo_id: str, folder_path: str, revision: str | None, commit_message: str
    ) -> str:
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)
        return f"https://hub/{repo_id}/commit/{revision}"

    def snapshot_download(self, name: str, *, allow_patterns: list[str], **where: Any) -> str:
        cache = self.root / "cache"
        cache.mkdir()
        for path in (self.root / name).iterdir():  # downloads are links into a store
            assert any(path.match(pattern) for pattern in allow_patterns)
            (cache / path.name).symlink_to(path)
        return str(cache)


def test_a_hub_has_the_folder_and_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = PredictiveGuide.for_inputs(torch.randn(9, 4), 3)
    fast, x = OnePassPredictive(guide, (4,), 3), torch.randn(5, 4)
    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub(tmp_path))
    assert fast.push_to_hub("me/iris", revision="v1") == "https://hub/me/iris/commit/v1"
    fast.save_pretrained(tmp_path / "own")
    names = {"model.safetensors", "config.json", "README.md"}
    for folder in (tmp_path / "me" / "iris", tmp_path / "own"):
        assert {path.name for path in folder.iterdir()} == names
    for name in ("me/iris", tmp_path / "own"):
        again = OnePassPredictive.from_pretrained(name)
        assert torch.equal(again.dirichlet(x).concentration, fast.dirichlet(x).concentration)


def test_a_hub_is_asked_as_its_package_wants() -> None:
    """The calls that stand in for it take what the package takes."""
    hub = pytest.importorskip("huggingface_hub")
    for real, ours in (
        (hub.HfApi.create_repo, Hub.create_repo),
        (hub.HfApi.upload_folder, Hub.upload_folder),
    ):
        assert set(inspect.signature(ours).parameters) <= set(inspect.signature(real).parameters)
    taken = inspect.signature(hub.snapshot_download).parameters
    assert {"revision", "token", "cache_dir", "allow_patterns"} <= set(taken)
    for name in ("save_pretrained", "push_to_hub", "from_pretrained"):
        assert hasattr(hub.ModelHubMixin, name) and hasattr(OnePassPredictive, name)


def test_without_the_package_a_hub_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"pyro-opu\[hub\]"):
        OnePassPredictive.from_pretrained("me/iris")
