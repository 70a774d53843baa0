"""What some errors of the table say, as patterns: which argument, what was expected, what came."""

from __future__ import annotations

# fmt: off
#: Case -> pattern of the message of a ``ValueError`` or ``TypeError``.
SAYS: dict[str, str] = {
    "kl_divergence: unnormalised rows": "`p_mean` must hold probabilities",
    "kl_divergence: NaN in q": "`q_mean` must be finite; got NaN",
    "kl_divergence: a list": "`p_mean` must be a torch.Tensor .* got list",
    "kl_from_log: probabilities": "`log_p` must hold log-probabilities",
    "calibration: probabilities": r"`log_probs` must hold log-probabilities \(N, C\)",
    "calibration: an array": "`log_probs` must be a torch.Tensor .* got ndarray",
    "calibration: draws, a label each": r"`probs` must have shape \(N, C\); got",
    "expected_calibration_error: log-probabilities": "`probs` must hold probabilities",
    "expected_calibration_error: no bins": "`num_bins` must be a positive integer",
    "r_hat: NaN": "`draws` must be finite, from at least one chain",
    "effective_sample_size: a list": "`draws` must be a torch.Tensor",
    "top_k: NaN": "`dirichlet` must have positive parameters; got NaN or",
    "uncertainty: a Dirichlet with NaN": "`source` must have positive parameters; got NaN or",
    "laplace_bridge: a list of variances": "`covariance` must be a torch.Tensor",
    "PredictiveDirichlet: NaN": "`log_mean` and .* finite",
    "central_coverage: levels=[50.0]": r"`levels` must be a number in \(0, 1\); got 50.0",
    "detection: a student of other classes": "must have the 3 classes of `teacher`; got 5",
    "detection: outside inputs without a name":
        "`outside` must be a dict name -> inputs; got Tensor",
    "to_inference_data: labels of another length": "`y` must hold one label per row of `x`",
    "to_inference_data: labels out of range": "`obs` at site 'obs' must hold values of",
    "to_inference_data: another width": "`run`'s model could not be called with the",
    "three_classes: classes=['a', 'b', 'c']": "`classes` must be 3 different classes",
    "reliability: rows that sum to 1, an entry below 0": "smallest entry -0.5",
    "logistic_regression: scale=0.0": "`scale` must be a positive finite number; got 0.0",
    "logistic_regression: labels of another length":
        r"`y` must .* label per row .* \(20,\); got \(7,\)",
    "perceptron: sizes=()": "`sizes` must be a tuple of at least 2 positive integers",
    "perceptron: sizes=(3, 2.5)": "`sizes` must be a tuple of at least 2 positive integers",
    "dropout_network: p=1": r"`p` must be a number in \[0, 1\); got 1",
    "fit_network: labels out of range": "`y` must hold labels from 0 to C - 1 = 2",
    "mean_field: scale=nan": "`scale` must be a positive finite number",
    "PolynomialDecay: gamma=2.0": r"`gamma` must be a number in \(0, 1\]; got 2.0",
    "Halving: every=2.5": "`every` must be a positive integer; got 2.5",
    "tempered: likelihood=nan": "`likelihood` must be a positive finite number",
    "SGLD: model=None": "`model` must be a callable",
    "EnergyDistance: num_samples=2.5": "`num_samples` must be an integer of at least 2; got 2.5",
    "WassersteinELBO: beta=nan": "`beta` must be a finite number of at least 0; got nan",
    "PredictiveGuide.for_inputs: hidden=(0,)": "`hidden` must be a tuple of positive integers",
    "load_compact: a model of two classes": "`source`.* must",
    "distill: guide of other inputs": "`guide` must answer inputs of shape .* it raised",
    "distill: guide on the meta device": "`guide` must .*on the meta device",
    "distill: guide without gradient":
        "`guide` must .*depends on its weights; got one without gradient",
    "distill: x sparse": "`x` must .*got a sparse_coo tensor",
    "distill: x on the meta device": "`x` must .*got a meta tensor",
    "distill: x a NumPy array": r"`x` must .*torch\.as_tensor\(x",
    "distill: x complex": "`x` must .*floating dtype; got torch.complex64",
    "OnePassPredictive: guide=None": "`guide` must be an nn.Module",
    "OnePassPredictive: classes=1": "`num_classes` must be an integer of at least 2",
    "OnePassPredictive: shape=(2.5,)": "`input_shape` must be a tuple of positive integers",
    "OnePassPredictive: sites=['obs']": "`sites` must be a list such as",
    "OnePassPredictive: inputs='x'": "`inputs` must be a callable",
    "OnePassPredictive(): a guide of other classes":
        r"`guide` must answer with event shape \(5,\), that of 5 classes; got \(4,\)",
}
