"""The short form of the tests, in an environment of the lowest or of the newest versions.

python .ci/short_form.py lowest|newest|python

The third is any Python, with the versions that pip finds for it.
"""

import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import requires, version
from importlib.util import find_spec

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

#: What other packages are called by, one table of every room that calls them; our own arithmetic is
#: the same at all versions.
TESTS = [
    *("tests/test_public_api.py", "tests/distributions/test_every_answer.py", "tests/export"),
    "tests/distributions/test_conventions.py",
    "tests/guides/test_every_guide.py::TestEveryGuide::test_state_and_description_make_it_again",
    "tests/guides/test_plug_in.py::test_a_file_of_it_needs_no_code_of_the_model",
    "tests/metrics/test_distances.py::test_two_classes_agree_with_scipy_and_with_the_assignment",
    "tests/metrics/test_scores.py::test_equals_scikit_learn_and_the_definition",
    *("tests/predictive/test_predictive.py::TestFile", "tests/predictive/test_folder.py"),
    *("tests/programs/test_batched.py", "tests/interop/test_arviz.py"),
    "tests/interop/test_runs.py",
    "tests/samplers/test_energy.py::test_arviz_has_it_by_chain",
    "tests/samplers/test_every_sampler.py::TestEverySampler::test_several_chains",
    "tests/transfer/test_every_policy.py::TestEveryPolicy::test_shape_dtype_and_no_gradient",
    "tests/teachers/test_every_teacher.py::TestEveryTeacher::test_draws_on_the_simplex",
    "tests/teachers/test_elsewhere_posteriors.py",
    "tests/teachers/test_elsewhere_numpyro.py::test_class_probabilities_are_read_not_sampled",
    "tests/teachers/test_elsewhere_numpyro.py::test_laws_are_read_by_their_own_methods",
    "tests/ladder/test_exact_files.py::test_a_program_says_what_exact_says",
    "tests/test_command.py::test_a_program_answers_as_exact_does",
    *("tests/scoring/test_answer_files.py", "tests/scoring/test_scorer.py"),
    "benchmarks/tests/test_readme.py::test_three_ways_print_what_is_said",
]
#: Packages without wheels for the newest Python, and what names the tests that need them.
NEEDING = {"numpyro": "numpyro", "polyagamma": "test_every_sampler"}
SHOWN = ("torch", "pyro-ppl", "numpy", "scipy", "scikit-learn", "arviz", "onnxscript")
#: What .ci/versions installs of the lowest versions.
EXTRAS = ("", "images", "samplers", "arviz", "laplace", "onnx", "plots", "tables", "bench")


def bounds() -> Iterator[tuple[str, Version]]:
    """Packages with their lowest versions."""
    for each in map(Requirement, requires("pyro-opu") or []):
        if each.marker is None or any(each.marker.evaluate({"extra": name}) for name in EXTRAS):
            yield from ((each.name, Version(bound.version)) for bound in each.specifier)


def main(which: str) -> int:
    print("Python", platform.python_version(), *(f"{name} {version(name)}" for name in SHOWN))
    if which == "lowest":
        # Without the end of a build, as in 2.10.0+cpu.
        found = {name: Version(Version(version(name)).public) for name, _ in bounds()}
        higher = {name for name, bound in bounds() if found[name] != bound}
        assert not higher, f"no test is run at the lowest versions of {higher}"
    elif which == "newest":
        assert Version(version("arviz")) >= Version("1")
    missing = [named for package, named in NEEDING.items() if not find_spec(package)]
    tests = [each for each in TESTS if not any(named in each for named in missing)]
    failed = pytest.main(["-q", "-p", "no:cacheprovider", "-m", "not slow", *tests])
    if which == "newest":  # the tutorial of ArviZ
        tutorial = [sys.executable, "-m", "tutorials.run", "11", "--quick"]
        failed = failed or subprocess.run(tutorial).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
