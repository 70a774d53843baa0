"""What some errors of the table say, as patterns: which argument, what was expected, what came."""

from __future__ import annotations

# fmt: off
#: Case -> pattern of the message of one of our errors.
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
    "distill: x a list": r"`x` must .*torch\.as_tensor\(x",
    "distill: x an array with NaN": "`x` must be finite",
    "distill: x an array of text": r"`x` must hold numbers.*got <U32 of shape \(40, 3\)\. Write",
    "distill: training=None": r"`training` must be a pyro_opu\.Training.*got None",
    "distill: training={'num_draws': 8}": r"`training` must be a pyro_opu\.Training.*got dict",
    "distill: x complex": "`x` must .*floating dtype; got torch.complex64",
    "OnePassPredictive.bound: level=1": r"`level` must be a number in \(0, 1\); got 1",
    "OnePassPredictive.bound: a threshold of four classes": "`threshold` needs a decision between",
    "OnePassPredictive.watch: a student of few rows": "`watch` needs rows .* at 190 inputs or more",
    "guarded: fast=3": "`fast` must be a OnePassPredictive; got int",
    "guarded: a student of few rows": "`fast` must have a bound .* it takes 190 transfer inputs",
    "guarded: novel rows and no exact answers": "`x` must hold .* `exact` is None; .* novel",
    "OnePassPredictive: guide=None": "`guide` must be an nn.Module",
    "OnePassPredictive: classes=1": "`num_classes` must be an integer of at least 2",
    "OnePassPredictive: shape=(2.5,)": "`input_shape` must be a tuple of positive integers",
    "OnePassPredictive: sites=['obs']": "`sites` must be a list such as",
    "OnePassPredictive: inputs='x'": "`inputs` must be a callable",
    "OnePassPredictive(): a guide of other classes":
        r"`guide` must answer with event shape \(5,\), that of 5 classes; got \(4,\)",
    "distill: source NaN, after 3 calls":
        r"`source` must return probabilities; got NaN\. Check its posterior",
    "distill: source fewer classes, after 3 calls":
        "`source` must give as many classes at any number of inputs, and at",
    "distill: source fewer draws, after 3 calls":
        "`source` must return the same number of draws at every call; got 8",
    "distill: source fewer rows, after 3 calls":
        r"`source` must return draws of shape \(S, N, C\) with S >= 1 and N = ",
    "distill: source a class of networks":
        r"`source`, a FunctionTeacher\(Linear, fresh draws, 500 by default",
    "distill: source classes that follow the rows":
        "`source` must give as many classes at any number of inputs, and at",
    "distill: transfer that gives NaN":
        r"`BadPolicy\(\)`, a transfer policy, must give finite inputs; got NaN or",
    "distill: transfer that gives fewer rows":
        r"`BadPolicy\(\)`, a transfer policy, must give 16 inputs like those of",
    "distill: transfer that gives a list":
        r"`BadPolicy\(\)`, a transfer policy, must give a torch\.Tensor of 16",
    "distill: transfer without _draw":
        r"`TransferPolicy\(\)`, a transfer policy, must give 16 inputs; it raised",
    "distill: guide a function": "`guide` must be .*has no weights to train",
    "distill: transfer a function": "`transfer` must be .*a pyro_opu.transfer.TransferPolicy; got",
    "distill: site=3": "`site` must be .*the name of a site; got int",
    "laplace_bridge: other inputs":
        r"`covariance` must have shape \(6, 3\) \(diagonal\) or \(6, 3, 3\) \(full\)",
    "laplace_bridge: one class":
        r"`mean` must be real of shape \(\*B, C\) with C >= 2 classes; got \(6, 1\)",
    "laplace_bridge: NaN in the mean": "`mean` must be finite",
    "laplace_bridge: negative variances": "variances that are not negative.*from -1",
    "laplace_bridge: a covariance that is not symmetric":
        "`covariance` must be a symmetric matrix without NaN; got entries that",
    "inverse_laplace_bridge: zero": r"`alpha` must be positive; got 0\. Clamp it above zero\.",
    "PredictiveDirichlet: a concentration per class":
        r"`log_mean` must have shape \(\*B, C\) and `log_concentration` shape",
    "PredictiveDirichlet.from_alpha: zero": "`alpha` must be positive",
    "Empirical: two axes":
        r"`log_points` must be log-probabilities \(K, N, C\) with K >= 1; got \(6",
    "DirichletMixture: other inputs":
        r"`log_weights` must have shape \(N, K\) with K >= 1, `log_means` \(N, K",
    "LogisticNormal: no factor": r"`log_scale` must have shape \(N, C\)",
    "OnePassPredictive(): x of another width":
        r"`x` must have shape \(N, 3\); got \(40, 2\)\. Reshape it, or distill a",
    "capture: another precision": "`precision` must be torch.bfloat16 or",
    "capture: a precision of a guide without a trunk": "module `trunk`",
    "export: path='missing/student'":
        r"`path` must end in \.onnx or \.pt2, which says the format; got",
    "export: no such output": "`outputs` must name some of",
    "distill, implicit: loss='likelihood'":
        '`loss` must be "energy", "wasserstein" or an Objective',
    "EnergyDistance: ground='l3'": "`ground` must be one of",
    "GaussianGuide.for_inputs: y with NaN": "`y` must be finite",
    "distill, of a real y: loss='wasserstein'":
        r"`loss` must be one of \['crps', 'moments'\].*wasserstein",
    "to_inference_data, of a student: labels out of range":
        "`y` must hold the classes of the 6 rows of x, whole numbers from 0 to",
    "to_inference_data: num_draws=7":
        "`num_draws` is for a student or a teacher; got 7 and a Predictive",
    "OnePassClassifier.fit: teacher='forest'":
        r"`teacher` must be one of \['dropout', 'logistic'\]; got 'forest'\. Or",
    "OnePassClassifier.fit: a teacher of two classes": "got 2 classes",
    "OnePassClassifier.fit: three rows": r"Found array with 3 sample\(s\).*minimum of 4",
    "joint.batch_bald: a marginal student": r'distill\(\.\.\., guide="joint"\)',
    "joint.batch_bald: num_draws=1": "at least 2",
    "joint.batch_bald: x beside draws": "`x` must be None",
    "joint.total: weights of 3": r"`weights` must be .*\(\d,\).*; got",
    "joint.batch_bald: size=41": r"`size` must be at most 40, the rows of the pool; got 41\.",
    "joint_information: batches of floats": "`batches` must hold rows",
    "joint_information: batches beyond the rows": "`batches` must hold rows",
    "joint.batch_bald: a real y": "class labels for batch_bald",
    "energy_distance: no axis of draws":
        r"`p` must be floating-point draws of shape \(S, N, C\); got",
    "energy_distance: other inputs": "`p` and `q` must agree in inputs and classes",
    "energy_distance: one draw":
        r"`p` must hold at least 2 draws for an unbiased energy distance; got 1\.",
    "wasserstein1: other numbers of draws":
        "`p` and `q` must hold the same number of draws when there are more",
    "kl_divergence: another shape": "`p_mean` and `q_mean` must have the same shape",
    "calibration: labels of floats": "tensor of integer labels; got torch.float32",
    "calibration: labels of another length":
        r"`y` must hold one label per input, shape \(6,\); got \(4,\)\. Were labels",
    "top_k: one input without its axis": r"batch shape \(N,\); got \(\)",
    "TopK.fixed: k=4": r"`k` must lie between 1 and 3, the classes that were ranked; got 4\.",
    "uncertainty: one draw":
        r"`source` must hold at least 2 draws \(S, N, C\) for a measure of their",
    "aleatoric_uncertainty: no axis of draws":
        r"`source` must be draws \(S, N, C\) on the simplex, C >= 2; got shape",
    "aleatoric_uncertainty: a list":
        r"`source` must be a Dirichlet or a tensor of draws \(S, N, C\); got list\.",
    "DropoutGuide: network=Linear(in_features=3, out_features=3, bias=True)":
        "`network` must be a nn.Sequential.*got Linear",
    "DropoutGuide: a network without dropout": r"got '1', Tanh\(\)",
    "factored: no samples": "`samples` must hold the kernel's sites",
    "gaussian_process: link='tanh'":
        "`link` must be 'logit', or for two classes 'probit'; got 'tanh' for 2",
    "gaussian_process: inducing half": "`inducing` must be float32 or float64",
    "SparseGaussianProcess: another width":
        r"`x` must be torch\.float32 of shape \(N, 3\), as the inducing inputs",
    "SparseGaussianProcess: labels of -1": "`y` must hold whole numbers from 0 to 1; got -1 in",
    "svgp: one class": r"`y` must hold at least two classes; got 1 in all 20 rows\. Shuffle the",
    "svgp: fewer rows than inducing inputs": "at most as many inducing inputs as .* 3; got 4",
    "split_last_layer: network=Linear(in_features=3, out_features=3, bias=True)":
        "must be a nn.Sequential that ends with a Linear",
    "last_layer_regression: y of another length":
        r"`y` must hold one number per input, shape \(20,\); got \(7,\)\. For a",
    "last_layer_regression: three outputs":
        r"`network` must have one output; got 3\. Fit each output by itself\.",
    "bayesian_network: network an activation": "`network` must have parameters.*got ReLU without",
    "regression: targets with an axis more":
        r"`y` must have shape \(3,\), as the network's outputs do; got \(3, 1\)\.",
    "fit_svi: batch_size=21":
        r"`batch_size` must be at most the 20 rows of `x`; got 21\. Leave it out",
    "fit_svi: learning_rate=1e+38": "`learning_rate` must keep the bound finite",
    "fit_svi: labels of another length":
        r"`y` must have one entry per row of `x`, 20; got shape \(7,\)\. Cut both",
    "process_guide: no samples": "two draws of the site 'v'; got 0",
    "MomentMatching: weights='equal'":
        r"`weights` must be one of \['share', 'variance'\]; got 'equal'\.",
    "MetaCritic: generate='some'": "`generate` must be one of .'all', 'modulate'.; got 'some'",
    "WassersteinELBO: ground='l2'": '`residual` needs ground="l1"',
    "distill, of a Predictive: return_sites=['obs', 'weight']":
        "`return_sites` asks for 'weight', a latent site: the student learns",
    "distill: return_sites=['label']":
        "`return_sites` asks for 'label', which is neither the observed site",
    "compact_approx of a teacher: return_sites='obs'":
        r"list or tuple of site names; got 'obs'. .* pass \['obs'\]",
    "distill, table: loss='wasserstein'": '`loss` must be "moments"',
    "OnePassPredictive, table: an unknown site of an answer":
        ".`site` is none of the observed ones, obs; got 'nothing'.",
    "distill, of a real y: loss='moments'":
        '`loss` "moments" needs a guide that answers with one normal',
    "simplex: nothing to draw": "`distribution` or `draws` must be given",
    "simplex: a tensor": "`distribution` must be a Dirichlet .* Tens",
    "simplex: several inputs":
        r"`distribution` must be of one input, batch shape \(\) or \(1,\); got \(6,\)\.",
    "simplex: four classes": r"`distribution` must have 3 classes; got 4\. Pick three of them with",
    "simplex: atoms": "must have a density; Empirical has none",
    "simplex: draws of four classes": r"shape \(S, 3\).* got \(3, 4\)",
    "simplex: labels=['a', 'b']": "`labels` must name the 3 classes",
    "simplex: ax='left'": "`ax` must be a matplotlib Axes .* str",
    "three_classes: source a list": "`source` must be a Dirichlet",
    "three_classes: source of no probability": "none at 1 of 1",
    "plots.decision_map: bounds=((1, -1), (-1, 1))": "`bounds` must be .* left < right",
    "plots.decision_map: measure='doubt'":
        r"`measure` must be one of \['concentration', 'differential_entropy'",
    "plots.decision_map: vmin=1.0": "`vmin` must be less than `vmax`",
    "decision_maps: sources without a title": "`sources` must be a dict",
    "decision_maps: sources of no panels": "`sources` must hold at least one",
    "plots.decision_map: y without data": "`y` needs `x`",
    "plots.decision_map: y of another length":
        r"`y` must hold one label per row of `x`, 6; got 4\.",
    "plots.decision_map: eight classes": "at most 7 classes.* got 8",
    "plots.decision_map: a measure that is infinite": "'concentration' is not at 10000 of 10000",
    "reliability: draws": r"`probs` must have shape \(N, C\); got \(20, 6, 3\)\.",
    "reliability: no models": "must hold 1 to 7 entries.* got 0",
    "risk_coverage: scores without a name": "must be a dict .* got Tensor",
    "risk_coverage: labels for errors": "`wrong` must be boolean",
    "risk_coverage: errors of another length":
        r"`scores_by_name\['entropy'\]` must hold one finite number for each of",
    "risk_coverage: no rows": "N >= 1",
    "risk_coverage: other names": r"`wrong` must have the names of the scores, \['entropy'\]; got",
    "plots.concentration_histograms: numbers":
        r"`answers\['in'\]` must be a distribution on the simplex, an",
    "training_curves: report a number": "`report` must be .* got int",
    "training_curves: report without a history": "'history' of evaluations",
    "training_curves: axes=[1]": "two axes.* got 1",
    "fidelity_scatter: one input": "at least 2 inputs",
    "OnePassPredictive(): no input":
        "`x`, the input, must be the first positional argument or the keyword",
    "load: guide a name": "`guide` must be a module .* got str",
    "load: device='meta'": '`device` is "meta", which holds shapes and no numbers; pass',
    "distill: source one draw": "holds one posterior draw; expected at least two",
    "distill: source one class": r"at least two classes \(C >= 2\)",
    "detection: no student": "must have a method `dirichlet",
    "fidelity, table: another teacher":
        r"`student` must answer with batch shape \(N,\) = \(1,\); got \(1, 2\) for",
    "detection: a name that is taken": "`outside` must not use the name 'misclassification'",
    "fidelity: extra of a name that is taken": "`extra` must not use the name 'held-out'",
    "fidelity: a posterior of three draws":
        "`teacher` must hold at least 4 posterior draws.* holds 3",
    "fidelity: a student of other classes":
        r"`student` must have the teacher's 3 classes; it has 5\. Pass a student",
    "fidelity: a student of NaN": "`student` must answer with numbers.* NaN at 1 of 1",
    "r_hat: three draws":
        r"`draws` must have shape \(chains, draws, \.\.\.\) with at least 4 draws",
    "compact_approx: size=9":
        r"`size` must be at most 8, the draws in the pool; got 9\. Choose fewer",
    "compact_approx: pool=99":
        r"`pool` must be at most 8, the draws that the posterior holds; got 99\.",
    "dark_knowledge: form='normal'": '`form` must be "normal" of a real y.*3 classes',
    "SGLD: steps too large": "`step_size` must be small enough for the chain to stay finite; the",
    "distill: source infinite draws":
        r"`posterior_samples\['weight'\]` must be finite; got NaN or infinity in",
    "distill: source unlike numbers of draws":
        "`posterior_samples` must all hold the same number of draws, on axis",
    "distill: source draws with weights": "WeighedPredictive, whose draws carry weights; resample",
    "distill: source an MCMC run": "MCMC run with a model and samples; .*call its .run",
    "distill: source fewer draws than asked for":
        r"`source` must return as many draws as asked for, 500; got 3\. Draws",
    "distill: source draws of NaN": "got NaN. Check its posterior",
    "Teacher.log_probs: x of another rank":
        r"`source` must give class probabilities of every input, shape \(S, 40",
    "distill: source an empty list": "`source` must hold at least two networks; got an empty",
    "distill: source a list of functions":
        r"`source\[0\]` must be an nn\.Module; got function\. For functions pass",
    "distill: source networks of unlike classes":
        "`source`'s networks must agree on the classes; got outputs of shape",
    "distill: source a real posterior whose scale is a number":
        r"must return two floating tensors \(loc, scale\)",
    "distill: source a real posterior of other rows":
        r"`source` must return means of shape \(S, N\) with N = 2; got \(8, 1\)\.",
    "distill: source a real posterior with NaN": "scales positive",
    "distill: x of three rows": "`x` must hold at least 4 transfer inputs.*got 3",
    "distill: x 1-d": r"a tensor \(N,\).*x\[:, None\]",
    "distill: guide of other classes":
        r"`guide` must return a Dirichlet with batch shape \(2,\) and event shape",
    "OnePassPredictive.probs: more draws than a joint student holds":
        "`num_draws` must be at most 8, the draws that a joint student holds",
    "distill: source a mixture of unlike classes": "one label or one real y per row",
    "distill: x a loader of empty tuples": "`x` must hold at least one tensor",
    "distill: x a tuple of other rows":
        r"`x\[1\]` must have as many rows as the other inputs, 40; got shape \(3",
    "distill: x a generator": "`x` must be a tensor, or a loader that can be iterated again and",
    "distill: x a loader without batches": "at least one batch",
    "distill: x a loader of strings":
        "`x` must be a loader whose batches are tensors, dicts of tensors, or",
    "distill: x a loader of two widths":
        r"`x` must be a loader whose inputs all have one shape; got \[\(2,\)",
    "Mixture: components without one": "at least one pair",
    "Mixture: components without weights": r"must be pairs .* got HeldOut\(\)",
    "ImageCorruption: kinds=('blurr',)":
        r"`kinds` must be one of \['affine', 'blobs', 'blur', 'colour'",
    "ImageCorruption: kinds=()": "at least one name; got none",
    "ImageCorruption: kinds='affine'": "must be a tuple of names",
    "TransferPolicy.sample: images of tables":
        r"`x` must hold images, \(N, H, W\) or \(N, channels, H, W\), or flattened",
    "TransferPolicy.sample: images of two rows":
        r"`x` must hold images of at least 4 x 4 pixels; got shape \(2, 20\)\.",
}
