"""Programs whose inputs name a group, an item or a token: hierarchies, item response, trials."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from programs.base import (
    DRAWS,
    Program,
    by_guide,
    by_nuts,
    drawn,
    labels,
    learnt,
    program,
    whole,
)

SCHOOLS = torch.arange(8)
EFFECTS = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


@program("eight schools, a plate of 8")
def eight_schools() -> Program:
    def model(sigma: Tensor) -> Tensor:
        eta = pyro.sample("eta", dist.Normal(torch.zeros(8), torch.ones(8)).to_event(1))
        mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
        tau = pyro.sample("tau", dist.HalfCauchy(25.0))
        return pyro.sample("obs", dist.Normal(mu + tau * eta, sigma))

    samples = by_nuts(poutine.condition(model, data={"obs": EFFECTS}), ERRORS)
    return Program(Predictive(model, samples), ERRORS, ERRORS, cure="a[group]")


@program("eight schools, an index")
def eight_schools_index() -> Program:
    def model(school: Tensor, sigma: Tensor, y: Tensor | None = None) -> None:
        mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
        tau = pyro.sample("tau", dist.HalfCauchy(25.0))
        with pyro.plate("schools", 8):
            eta = pyro.sample("eta", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(school)):
            pyro.sample("obs", dist.Normal(mu + tau * eta[school], sigma), obs=y)

    samples = by_nuts(model, SCHOOLS, ERRORS, EFFECTS)
    x = SCHOOLS.repeat(20), 9.0 + 9.0 * torch.rand(160)
    return Program(Predictive(model, samples), x, (SCHOOLS, ERRORS))


@program("radon, varying intercepts and slopes")
def radon() -> Program:
    def model(floor: Tensor, county: Tensor, log_radon: Tensor | None = None) -> None:
        mu_a = pyro.sample("mu_a", dist.Normal(0.0, 2.0))
        sigma_a = pyro.sample("sigma_a", dist.HalfCauchy(2.0))
        mu_b = pyro.sample("mu_b", dist.Normal(0.0, 2.0))
        sigma_b = pyro.sample("sigma_b", dist.HalfCauchy(2.0))
        with pyro.plate("counties", 20):
            a = pyro.sample("a", dist.Normal(mu_a, sigma_a))
            b = pyro.sample("b", dist.Normal(mu_b, sigma_b))
        sigma = pyro.sample("sigma", dist.HalfCauchy(2.0))
        with pyro.plate("data", len(floor)):
            pyro.sample("obs", dist.Normal(a[county] + b[county] * floor, sigma), obs=log_radon)

    floor, county = whole(2, 400, seed=1).float(), whole(20, 400, seed=2)
    y = 1.5 + drawn(20, seed=3)[county] * 0.5 - 0.7 * floor + 0.7 * drawn(400, seed=4)
    new = whole(2, 200, seed=5).float(), whole(20, 200, seed=6)
    return Program(by_guide(model, floor, county, y, steps=800), (floor, county), new)


@program("election 1988, five factors")
def election() -> Program:
    sizes = {"age": 4, "edu": 4, "state": 51, "region": 5}

    def model(
        black: Tensor,
        female: Tensor,
        age: Tensor,
        edu: Tensor,
        state: Tensor,
        region: Tensor,
        y: Tensor | None = None,
    ) -> None:
        ind = {"age": age, "edu": edu, "state": state, "region": region}
        b_0 = pyro.sample("b_0", dist.Normal(0.0, 10.0))
        b_black = pyro.sample("b_black", dist.Normal(0.0, 10.0))
        b_female = pyro.sample("b_female", dist.Normal(0.0, 10.0))
        logits = b_0 + b_black * black + b_female * female
        for name, size in sizes.items():
            scale = pyro.sample(f"sigma_{name}", dist.HalfNormal(1.0))
            with pyro.plate(f"{name}_plate", size):
                a = pyro.sample(f"a_{name}", dist.Normal(0.0, scale))
            logits = logits + a[ind[name]]
        with pyro.plate("obs_plate", len(black)):
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    def voters(rows: int, seed: int) -> tuple[Tensor, ...]:
        floating = [whole(k, rows, seed + k).eq(0).float() for k in (8, 2)]
        factors = [whole(size, rows, seed + 20 + size) for size in sizes.values()]
        return (*floating, *factors)

    x, new = voters(800, 10), voters(200, 200)
    places = drawn(51, seed=7)[x[4]] * 0.5
    y = labels(0.3 - 1.5 * x[0] - 0.2 * x[1] + places, seed=8)
    return Program(by_guide(model, *x, y, steps=600), x, new)


@program("item response, 2PL")
def item_response() -> Program:
    def model(models: Tensor, items: Tensor, obs: Tensor | None = None) -> None:
        with pyro.plate("thetas", 40):
            ability = pyro.sample("theta", dist.Normal(0.0, 1.0))
        with pyro.plate("bs", 15):
            difficulty = pyro.sample("b", dist.Normal(0.0, 2.0))
            slope = pyro.sample("slope", dist.LogNormal(0.0, 0.5))
        with pyro.plate("observe_data", len(models)):
            logits = slope[items] * (ability[models] - difficulty[items])
            pyro.sample("obs", dist.Bernoulli(logits=logits), obs=obs)

    models, items = (
        grid.flatten() for grid in torch.meshgrid(*map(torch.arange, (40, 15)), indexing="ij")
    )
    y = labels(drawn(40, seed=1)[models] - 1.5 * drawn(15, seed=2)[items], seed=3)
    new = whole(40, 200, seed=4), whole(15, 200, seed=5)
    return Program(by_guide(model, models, items, y, steps=600), (models, items), new)


def seasons(rows: int, seed: int) -> Tensor:
    """Times at bat."""
    return 30.0 + whole(20, rows, seed).float()


@program("baseball, fully pooled")
def fully_pooled() -> Program:
    def model(at_bats: Tensor, hits: Tensor | None = None) -> Tensor:
        phi = pyro.sample("phi", dist.Uniform(0.0, 1.0))
        with pyro.plate("num_players", at_bats.shape[0]):
            return pyro.sample("obs", dist.Binomial(at_bats, phi), obs=hits)

    at_bats = seasons(60, seed=1)
    predictive = Predictive(model, by_nuts(model, at_bats, (0.27 * at_bats).round()))
    return Program(predictive, at_bats, seasons(40, seed=2))


def players(fixed: bool) -> Program:
    """Success of 18 players, of whom the plate or an index tells."""

    def hits_of(phi: Tensor, at_bats: Tensor, hits: Tensor | None) -> Tensor:
        return pyro.sample("obs", dist.Binomial(at_bats, phi), obs=hits)

    def rates() -> Tensor:
        m = pyro.sample("m", dist.Uniform(0.0, 1.0))
        kappa = pyro.sample("kappa", dist.Pareto(1.0, 1.5))
        with pyro.plate("players", 18):
            return pyro.sample("phi", dist.Beta(m * kappa, (1.0 - m) * kappa))

    def partially_pooled(at_bats: Tensor, hits: Tensor | None = None) -> Tensor:
        phi = rates()
        with pyro.plate("num_players", 18):
            return hits_of(phi, at_bats, hits)

    def of_player(player: Tensor, at_bats: Tensor, hits: Tensor | None = None) -> Tensor:
        phi = rates()
        with pyro.plate("data", len(player)):
            return hits_of(phi[player], at_bats, hits)

    player, at_bats = torch.arange(18), seasons(18, seed=3)
    hits = (at_bats * torch.linspace(0.2, 0.35, 18)).round()
    if fixed:
        samples = by_nuts(partially_pooled, at_bats, hits)
        warning = "latents of the rows that it was trained on"
        return Program(Predictive(partially_pooled, samples), at_bats, at_bats, warning=warning)
    samples = by_nuts(of_player, player, at_bats, hits)
    x = player.repeat(10), seasons(180, seed=4)
    return Program(Predictive(of_player, samples), x, (player, seasons(18, seed=5)))


@program("baseball, partially pooled, a plate of 18")
def partially_pooled() -> Program:
    return players(fixed=True)


@program("baseball, partially pooled, an index")
def partially_pooled_index() -> Program:
    return players(fixed=False)


def noisy_labels(summed: bool) -> Program:
    """A label that is flipped one time in ten: the true one is a latent of its row, or summed."""

    def logits_of(x: Tensor) -> Tensor:
        return x @ pyro.sample("w", dist.Normal(torch.zeros(2), 2.0).to_event(1))

    def summed_out(x: Tensor, y: Tensor | None = None) -> None:
        logits = logits_of(x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(0.1 + 0.8 * logits.sigmoid()), obs=y)

    def sampled(x: Tensor, y: Tensor | None = None) -> None:
        logits = logits_of(x)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Bernoulli(logits=logits), infer={"enumerate": "parallel"})
            pyro.sample("y", dist.Bernoulli(0.1 + 0.8 * z), obs=y)

    x, new = drawn(300, 2, seed=6), drawn(200, 2, seed=7)
    y = labels(2.0 * x[:, 0] - x[:, 1], seed=8)
    guide = learnt(summed_out, AutoNormal(summed_out), x, y)  # one posterior for both
    model = summed_out if summed else sampled
    return Program(Predictive(model, guide=guide, num_samples=DRAWS, return_sites=("y",)), x, new)


@program("label noise, its latent sampled")
def noise_sampled() -> Program:
    return noisy_labels(False)


@program("label noise, its latent summed")
def noise_summed() -> Program:
    return noisy_labels(True)
