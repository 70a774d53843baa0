"""A run of any sampler, a student or a teacher as ArviZ's InferenceData or DataTree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pyro_opu.checks import ArgumentError, ArgumentTypeError, check_bool, check_mapping
from pyro_opu.interop.groups import Arrays, Groups, Wanted, class_groups, gives_class_probs
from pyro_opu.interop.runs import run_groups
from pyro_opu.programs.trace import quiet
from pyro_opu.rng import seeded

__all__ = ["summary", "to_inference_data"]


def to_inference_data(
    run: Any,
    *args: Any,
    log_likelihood: bool = True,
    posterior_predictive: bool = True,
    probs: bool = False,
    predictions: object = None,
    num_draws: int | None = None,
    num_chains: int = 1,
    seed: int | None = None,
    coords: Mapping[str, Sequence[object]] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    **kwargs: Any,
) -> Any:
    r"""Convert a run, a student or a teacher to ArviZ, for ``az.loo``, ``az.compare``, plots.

    ======================  ====================================================================
    posterior               every latent site, and where the model is run every deterministic one,
                            (chain, draw, ...); of a student or a teacher "probs", the class
                            probabilities, (chain, draw, data, class)
    sample_stats            of a run: "diverging" and "energy", where the kernel records them
                            (Pyro's NUTS keeps no energy;
                            :class:`~pyro_opu.samplers.NUTSWithEnergy` does); "lp", the log joint
                            density of data and constrained latents (without Jacobian)
    log_likelihood          :math:`\log p(y_i|\theta_s)` of every observed site,
                            (chain, draw, N); a subsampling or tempering scale is left out, and
                            rows that are one event are taken apart (below)
    posterior_predictive    labels drawn from every observed site's distribution, one per draw;
                            "probs", (chain, draw, N, C), where asked for
    observed_data           the observed sites' values
    constant_data           the other tensors that the model was called with
    predictions             as posterior_predictive at new rows, where they are given;
                            "predictions_constant_data" are these rows
    ======================  ====================================================================

    ``arviz.from_pyro`` lines the draws of a vector latent up with the data: silently wrong where
    S = N. Here every draw has its own run of the model, all through :func:`torch.vmap` at once,
    checked against the loop.

    **Rows that are one event**, as in ``Normal(f, 1).to_event(1)`` over the rows, are still one
    observation each: the independent parts of the event are its rows, and of a multivariate normal
    over the rows :math:`\log p(y_i|y_{-i},\theta_s)` is taken, which is what leaving a row out
    needs (Buerkner, Gabry and Vehtari 2021). Any other event over the rows is one observation, with
    a warning.

    **A student's LOO.** ``az.loo`` and ``az.waic`` look at one row at a time, and so need only the
    marginals, which a student has: with many draws of :math:`\mathrm{Dir}(\alpha(x_i))`

    .. math::
        \mathrm{elpd}_i = -\log \mathrm{E}\,\pi_{y_i}^{-1}
        = \log\frac{\alpha_{y_i} - 1}{\alpha_0 - 1}, \qquad k_i = 1 / \alpha_{y_i}

    By the Pareto k draws cannot estimate it where :math:`\alpha_{y_i}` is below about 1.4. It is
    the teacher's LOO as far as the student's marginals are the teacher's, tails included, on the
    rows and labels that the posterior was fitted to. A student that gives a mean alone has a p_loo
    of 0 in ArviZ 0.x, and no LOO in 1.x. A student's draws are independent between inputs, so what
    concerns several rows at once (``az.plot_ppc``, ``az.plot_bpv``) varies less than the teacher's.
    R-hat and effective draws do not apply; :func:`~pyro_opu.interop.arviz.summary` leaves them out.

    Args:
        run: A ``pyro.infer.MCMC`` after ``run(x, y)``, or a ``Predictive`` with posterior samples
            (one chain, unless ``num_chains`` says more) or a guide (one chain of ``num_samples``
            independent draws). Or a student: what ``distill`` returns, or a guide. Or ``exact`` of
            any of these, or any other teacher that :func:`~pyro_opu.as_teacher` takes.
        *args: What the model is called with, labels included; of an ``MCMC`` known from its run; of
            a student or a teacher x ``(N, ...)`` and, for LOO, labels y ``(N,)``.
        log_likelihood, posterior_predictive: False leaves the group out; with both False the model
            is not run.
        probs: Class probabilities, too, for sites of class labels.
        predictions: New rows: x; or a tuple of the model's arguments by position, or a dict of them
            by name, without labels. Latents of a row that the draws hold belong to the old rows.
        num_draws: S, of a student or a teacher; by default ``num_samples`` of a student, all of a
            teacher (500 of one that draws afresh).
        num_chains: Chains of a ``Predictive`` or a teacher, one after another in its draws.
        seed: Fixes guide draws and labels; torch's generators are then left as they were.
        coords: Values along named dimensions, as in ArviZ; ``{"class": names}`` names the classes.
        dims: Names of a variable's dimensions; by default those of the model's plates.
        **kwargs: As ``args``, by name.

    Returns:
        ``arviz.InferenceData`` (a ``DataTree`` with ArviZ 1.x). A kernel that was given a potential
        function knows no model: posterior and "diverging" only.

    Raises:
        ImportError: ArviZ is not installed.
        TypeError: ``run`` is none of these, or a ``WeighedPredictive``; a regressor's student.
        ValueError: No draws; no data for a ``Predictive``; a model that subsamples its data, or has
            latents that the draws do not hold; labels that are no classes of a student.

    Example:
        >>> import torch, pyro, pyro.distributions as dist
        >>> from pyro.infer import MCMC, NUTS
        >>> from pyro_opu.interop.arviz import to_inference_data
        >>> def model(x, y=None):
        ...     w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        ...     with pyro.plate("data", len(x)):
        ...         return pyro.sample("obs", dist.Bernoulli(logits=x @ w), obs=y)
        >>> mcmc = MCMC(NUTS(model), num_samples=5, warmup_steps=5, disable_progbar=True)
        >>> mcmc.run(torch.randn(7, 2), torch.ones(7))
        >>> data = to_inference_data(mcmc)  # and beside it to_inference_data(fast, x, y)
        >>> data.log_likelihood["obs"].shape
        (1, 5, 7)

    References:
        Kumar, Carroll, Hartikainen and Martin (2019), ArviZ; Vehtari, Gelman and Gabry (2017),
        Eqs. 7-10, for what ``az.loo`` makes of the log-likelihood; Buerkner, Gabry and Vehtari
        (2021), Efficient leave-one-out cross-validation for Bayesian non-factorized normal and
        Student-t models, Eq. 8. The student's closed form is
        this project's.
    """
    arviz = _arviz("to_inference_data")
    answers = gives_class_probs(run)
    if num_draws is not None and not answers:
        raise ArgumentError(
            f"`num_draws` is for a student or a teacher; got {num_draws!r} and a "
            f"{type(run).__name__}, which holds its draws. Leave it out, or thin the draws: "
            "Predictive(model, {name: value[::10] for name, value in samples.items()})."
        )
    check_bool("log_likelihood", log_likelihood)
    check_bool("posterior_predictive", posterior_predictive)
    check_bool("probs", probs)
    groups_asked = (log_likelihood, posterior_predictive, probs)
    wanted = Wanted(*groups_asked, num_draws, num_chains, predictions)
    with quiet(), seeded(seed):
        if answers:
            groups = class_groups(run, wanted, *args, **kwargs)
        else:
            groups = run_groups(run, wanted, args, kwargs)
    return _assembled(arviz, groups, coords, dims)


def summary(data: Any, **options: object) -> Any:
    """``az.summary``; of a student without the columns that judge chains.

    R-hat, effective draws and Monte Carlo errors say how well chains have mixed. A student's draws
    are independent, as many as were asked for, so the columns would only repeat their number.

    Args:
        data: What :func:`~pyro_opu.to_inference_data` returned, of a run, a teacher or a student.
        **options: Options of ``az.summary``, as ``var_names``, ``coords``. A ``kind`` is kept.

    Returns:
        A ``pandas.DataFrame``, a row per element of every variable.

    Raises:
        ImportError: ArviZ is not installed.
        TypeError: ``data`` has no posterior.

    Example:
        >>> import torch, pyro.distributions as dist
        >>> from pyro_opu.interop.arviz import summary, to_inference_data
        >>> student = lambda x: dist.Dirichlet(torch.ones(len(x), 3))
        >>> data = to_inference_data(student, torch.randn(4, 2), num_draws=100)
        >>> "r_hat" in summary(data)
        False
    """
    try:
        attributes = data["posterior"].attrs
    except (KeyError, TypeError) as error:
        raise ArgumentTypeError(
            "`data` must have a group 'posterior', as what to_inference_data returns has; got "
            f"{type(data).__name__}. Write summary(to_inference_data(fast, x))."
        ) from error
    if attributes.get("independent_draws"):
        options = {"kind": "stats", **options}
    return _arviz("summary").summary(data, **options)


def _arviz(who: str) -> Any:
    """The package ArviZ, of either version."""
    try:
        import arviz
    except ImportError as error:
        raise ImportError(
            f"{who} needs ArviZ, which is not installed: pip install 'pyro-opu[arviz]'."
        ) from error
    return arviz


def _assembled(
    arviz: Any,
    groups: Groups,
    coords: Mapping[str, Sequence[object]] | None,
    dims: Mapping[str, Sequence[str]] | None,
) -> Any:
    """``InferenceData`` of ArviZ 0.x, groups by keyword; ``DataTree`` of 1.x, groups nested."""
    for argument, given in (("coords", coords), ("dims", dims)):
        check_mapping(argument, given, "name -> sequence", f'Write {argument}={{"class": [...]}}.')
    full = {group: values for group, values in groups.values.items() if values}
    names = {name: list(value) for name, value in {**groups.dims, **(dims or {})}.items()}
    newer = int(arviz.__version__.split(".")[0]) >= 1
    try:
        named: dict[str, Any] = {"coords": coords, "dims": names}
        if "predictions" in full:  # whose rows are others than those that `coords` may name
            of_classes = {k: v for k, v in (coords or {}).items() if k.startswith("class")}
            named |= {"pred_dims": names, "pred_coords": of_classes}
        found = (
            arviz.from_dict(full, **named) if newer else arviz.from_dict(**_rounded(full), **named)
        )
    except (ValueError, KeyError, IndexError) as error:  # of xarray
        raise ArgumentError(
            f"`coords` and `dims` must fit the variables' shapes; got {coords!r} and {dims!r}: "
            f"{str(error).splitlines()[0]}. Give a name to each axis, a value to each entry."
        ) from error
    about = {"chains": groups.note, "independent_draws": int(groups.independent)}
    found["posterior"].attrs.update(about)
    return found


def _rounded(full: dict[str, Arrays]) -> dict[str, Arrays]:
    """Groups whose log-likelihoods are zero where their exponentials are one to rounding.

    From differences that the exponential loses ``az.loo`` of ArviZ 0.x makes NaN; 1.x wants them.
    """
    rounded = {
        name: np.where(abs(values) < 1e-15, 0.0, values)
        for name, values in full.get("log_likelihood", {}).items()
    }
    return {**full, "log_likelihood": rounded} if rounded else full
