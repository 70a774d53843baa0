"""The numbers that training was tuned by, in one table, each with the measurement that it rests on.

A number without one was chosen, and nothing has been measured that speaks against it. KL is the
held-out KL of the student's mean from the posterior's. The rules that use these numbers are tested
in ``tests/training/test_plan.py`` where nothing else is named.
"""

from typing import Literal

# Steps ------------------------------------------------------------------------------------------

Effort = Literal["quick", "default", "thorough"]
#: Steps, and most inputs that are labelled once, by effort. The scoreboard is of "default".
EFFORTS: dict[Effort, tuple[int, int]] = {
    "quick": (1000, 2**14),
    "default": (3000, 2**16),
    "thorough": (12_000, 2**18),
}
#: What a default run asks of the teacher, labels that judge, teach and calibrate, as a multiple of
#: what a quick one does. Test: ``test_distill_few_queries.py``.
THRIFT = 4
#: Posterior draws whose mean errs as that of a student which begins about where it should end, and
#: takes the quick effort: Gaussian processes on Pima begin at 1,200 to 1,700, and end at 1,700, or
#: after all steps at 1,700 to 2,500. Test: ``tests/guides/test_plug_in.py``.
BEGINS_NEAR = 1000.0
#: Steps, with the draws that calibrate, and labels from scratch, as multiples of those of a student
#: that begins at another. Labels are what nearness costs: a tenth of them leaves students of MC
#: dropout on digits with 1.2 times the KL, a fifth with 1.07. Test: ``test_distill_start.py``.
FOLLOWING = (10, 5)
#: Labels of a student that is not given its logit, with the draws that calibrate, as a multiple of
#: those of one that is: by a quarter of them Gaussian processes on Pima end at 1.0 to 1.1 times the
#: KL in .7 of the time, by an eighth at up to 1.4.
ONE_LOGIT = 4
#: Share of the steps that the closed-form warm start takes before another objective.
WARM_SHARE = 0.9
#: Draws by which coefficients of a closed form are known, at most, and of a posterior that draws
#: afresh: four times what a student must be as near as. Test: ``tests/guides/test_affine.py``.
AFFINE_DRAWS = 2000
#: Share of the warm start in which the rate falls, and evaluations without an improvement that
#: begin it. Test: ``tests/training/test_batches.py``.
SETTLE_SHARE, PLATEAU = 0.5, 6
#: Evaluations without an improvement that end a refinement.
PATIENCE = 5
#: Posterior draws whose mean errs as a student's, from which judging draws hardly tell students
#: apart, and one evaluation without an improvement is enough.
NEAR = 2000.0
#: Improvement that counts, as a part of the distance, or of what the judging draws have by chance.
LEAST_GAIN = 0.02
#: Fewest steps, where seconds are given that are too few.
FEWEST_STEPS = 50

# A step -----------------------------------------------------------------------------------------

#: Inputs in a batch, and in one of a student of more than `MANY` weights: that of MC dropout on
#: MNIST, 478,000 weights, is then left with two thirds of the KL.
BATCH, LARGE_BATCH, MANY = 2**8, 2**10, 2**18
#: Numbers in the inputs of a batch (64 MB), and in one draw at all of them, which a student makes
#: some ten tensors of.
INPUTS_OF_BATCH, OUTPUTS_OF_BATCH = 2**24, 2**22
#: Adam's rate for layers of up to so many units. Students of MC dropout on MNIST, 512 units, are
#: left with 1.6 times the KL by this rate as by half of it or a fifth; at 256 units digits are
#: better off with half of it and Spambase with all of it.
RATE, NARROW = 4e-3, 256
#: Share of the rate by which a teacher's network itself is moved. With all of it students of MC
#: dropout in 64-256-256-10 are as near as 120 draws at new inputs, by .3 of it as 230, by .1 and
#: .03 as 280.
NETWORK_SHARE = 0.1
#: Decay of the exponential average of the weights.
AVERAGING = 0.99
#: Largest norm of a gradient, and the weight of a step in the running mean of the loss.
CLIP, LOSS_WEIGHT = 5.0, 0.01
#: Teacher's draws per input and step. The noise of so few averages out over the steps, but not at
#: inputs that few batches come near: the warm start takes more, up to so many operations in matrix
#: products and so many numbers; of a posterior that draws afresh at most so many.
NUM_DRAWS, CHEAP_OPERATIONS, CHEAP_NUMBERS, MOST_DRAWS = 32, 2**26, 2**18, 500
#: Parts of a batch with draws of their own: draws are joint over the inputs of one call, so the
#: noise of one set does not average out within the batch. Test: ``tests/training/test_steps.py``.
DRAW_BLOCKS = 4
#: Operations of a step, forward and back, up to which one thread takes it: beside another busy
#: process two threads take up to 30 times as long. Test: ``tests/training/test_batches.py``.
SINGLE_THREAD = 2**28
#: Steps that are taken before one is recorded, as libraries must be initialised outside of a graph.
#: Test: ``tests/training/test_descent.py``.
EAGER = 3

# Labels -----------------------------------------------------------------------------------------

#: Numbers in all tensors of a pool (1 GB): 2^18 images of MNIST. A third of them leave its student
#: with 1.5 times the KL. One of fewer inputs than `FEWEST` is learnt by heart, so batches are then
#: labelled as they come.
POOL_NUMBERS, FEWEST = 2**28, 2**13
#: Inputs of more numbers are wide: a pool of more numbers than so many (64 MB) does not hold these,
#: but makes them again batch by batch, in 20 to 25 ms for 256 of 10,000 columns or 3 x 32 x 32.
WIDE, HELD_NUMBERS = 2**10, 2**24
#: Operations to label a pool, and numbers in all draws of its labels, where there are more than
#: `FEWEST_DRAWS` per input: up to 20 seconds of one core. The luck of few draws is noise in steps:
#: by a quarter, 32 draws for 99, students of MC dropout in 64-256-256-10 are as near as 200 draws
#: at new inputs, for 355; 32 draws at four times the inputs leave them as near as 280.
OPERATIONS, LABELS, FEWEST_DRAWS = 2**40, 2**27, 32
#: All blocks together have so many draws where every draw costs too much: twice as many leave
#: students of Gaussian processes with .7 to .85 of the KL, and take twice the time.
JOINT_DRAWS = 2**14
#: Operations of labels that a student of many weights is worth, as a multiple of those of its
#: steps: by a third of them that of MC dropout on MNIST learns the luck of the draws, and is left
#: with 1.4 times the KL.
LABELS_BY_STEPS = 2.5
#: Numbers in the fewest draws of all inputs: 2^16 inputs of 1,000 classes.
MOST_LABELS = 2**31
#: Inputs that share draws, which are joint over them: the luck of one set averages out over the
#: sets, so there are no more than so many. Held draws, all taken, have no luck.
BLOCK, HELD_BLOCK, MOST_BLOCKS = 2**9, 2**12, 2**8
#: Numbers in the draws of a block, and inputs that a guide reads at once: memory.
BLOCK_NUMBERS, ROWS = 2**23, 2**8

# Judging and calibrating. Test: tests/training/test_held_out.py ---------------------------------

#: Fraction of the transfer inputs held out for validation, and its cap.
HELD_OUT_SHARE, HELD_OUT_MOST = 0.15, 512
#: Fraction of the transfer inputs that only the student's bound sees, its cap, and the rows that a
#: level of .95 needs. The .99 of 512 rows rests on five. Blocks of them with draws of their own.
KEPT_SHARE, KEPT_MOST, KEPT_FEWEST, KEPT_BLOCKS = 0.1, 512, 19, 64
#: Teacher's draws at each input that validates or calibrates, at most.
LABEL_DRAWS = 1000
#: Blocks of such inputs with draws of their own, where the teacher can draw afresh: with one block
#: of joint draws the iterate nearest to their noise would look like the best.
LABEL_BLOCKS = 16
#: Numbers in all draws that validate, which is done often, and that calibrate, which is done once.
VALIDATION_NUMBERS, CALIBRATION_NUMBERS = 2**20, 2**23
#: Operations that either takes, at most: half of what teaching labels may. 12,000 images and a
#: convolution were calibrated in 42 s by 2^23 numbers, and taught in 12.
JUDGING_OPERATIONS = 2**37
#: Inputs that validate, though, if they have no more numbers than those that calibrate: by four, as
#: 1,000 classes would leave, no order is known.
FEWEST_INPUTS = 32

# Joint draws: heads on shared features, and waves. Test: tests/training/test_joint_law.py ---------

#: Numbers in all draws at the inputs that teach, operations to ask for them, and how many inputs.
HEADS_NUMBERS, HEADS_OPERATIONS, HEADS_FEWEST, HEADS_MOST = 2**26, 2**41, 2**11, 2**14
#: Draws in a step, Adam's rate, and the deviation of the first weights.
HEADS_DRAWS, HEADS_RATE, APART = 64, 8e-3, 0.05
#: Widest features that the draws may be linear in, and the error that is rounding: a share of the
#: largest logit.
MOST_LINEAR, LINEAR = 256, 1e-4
#: Logarithm of a factor by which the spread of draws may be off where waves are kept or not.
RIGHT_SPREAD = 0.1
#: Inputs of a group, groups in a step by joint laws, Adam's rate there, steps for one of the heads'
#: own, and inputs that judge.
GROUP, GROUPS, LAW_RATE, LAW_STEPS, JUDGED = 4, 64, 2e-3, 0.25, 256
#: Numbers in what all groups of a step say, and in all distances that judge, at most.
WIDEST, MOST_DISTANCES = 2**8, 2**30
#: Adam's rate for a learned witness, and its steps before the student's first.
WITNESS_RATE, WITNESS_WARM = 1e-3, 150

# Seconds. Test: tests/training/test_clock.py ------------------------------------------------------

#: Rows of the first call whose pace is taken; seconds of a call that tell it, at least, their share
#: of those that are given, and those where none are. Labels look 25 times as costly by two rows as
#: they are, and by 16 those of a posterior that draws 650 weights anew in every call 13 times.
FIRST_ROWS, TELLING, TELLING_SHARE, TELLING_AT_EASE = 16, 0.03, 0.005, 0.1
#: A call at four times the rows gains if a row takes less than this share of what it took; as many
#: times as long as is telling may be spent on it.
GAINS, AFFORDED = 0.6, 3.0
#: Inputs, at most, between two looks at the clock while they are labelled to judge.
TIMED_ROWS = 16
#: Of seconds that are given, the shares of labels that judge, that calibrate and that bound, each,
#: of passes that set a student up, and of those for novelty; of what is left for labels and steps,
#: that of labels; and of steps, that of evaluations, of which there are so many, at least and most.
JUDGING_SHARE, SET_UP_SHARE, NOVELTY_SHARE = 0.06, 0.03, 0.03
LABEL_SHARE, EVALUATED_SHARE, EVALUATIONS = 0.3, 0.15, (4, 50)
#: Rows that set a student up, and that tell what is novel, at least.
FEWEST_ROWS = 256
#: Numbers that calibrate for every second that is given, and seconds of a number: the search for
#: a law costs more than labels of a posterior that is cheap.
BY_SECOND, OF_NUMBER = 2**18, 3e-7
#: Evaluations that as much is spent on after the last step, and seconds beside: novelty is fitted.
EVALUATED_AFTER, BESIDE = 4, 0.5
#: Steps that batches are made smaller for, and inputs in the smallest.
MANY_STEPS, LEAST_BATCH = 300, 32
#: What a step takes, with its share of Adam and of judging, as a multiple of its loss and gradient;
#: and the share of the seconds that were given by which more may be taken in silence.
STEP_SPENT, OVERRUN = 1.5, 0.2
