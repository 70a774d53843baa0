"""Bad calls of objectives."""

from functools import partial

from bad_calls.models import BROKEN, NAN, X
from bad_calls.table import values
from pyro_opu import objectives
from pyro_opu.objectives.likelihood import LikelihoodFirst

# fmt: off
values(objectives.WassersteinELBO, beta=[-1.0, NAN, "1"], likelihood=[-1.0, NAN],
    penalty=[-1.0, NAN], ground=["l3", "l2", None], num_samples=[0, 1, 2.5], critic_steps=[0, 1.5],
    critic_warmup=[-1, 1.5], critic_learning_rate=[0.0, NAN], critic=["network", 3],
    residual=["no", None])
values(objectives.EnergyDistance, num_samples=[0, 1, 2.5, "64"], likelihood=[-1.0, NAN],
    ground=["l3"])
values(LikelihoodFirst, until=[1.5])
values(objectives.MomentMatching, weights=["equal", None])
values(objectives.DirichletLikelihood, smoothing=[-0.1, 1.0, NAN, "0"])
values(objectives.EnsembleDistribution, temperature=[0.5, NAN, "10"], smoothing=[-0.1, 1.0, NAN])
CRITIC = partial(objectives.MetaCritic, num_classes=3)
values(objectives.MetaCritic, X, num_classes=[1, 2.5])
values("MetaCritic", partial(CRITIC, X), widths=[(0,), 8], hidden=[(), (0,), 8],
    generate=["some", 3])
values("MetaCritic", CRITIC, x={"one row": X[0], "a list": X.tolist(), "with NaN": BROKEN})
values(objectives.as_objective, loss=["kl", 3, objectives.EnergyDistance])
