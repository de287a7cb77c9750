//! The formulae of PyTorch's optimizers for a single number, in f64, as its documentation states
//! them.

/// Settings of all of them; each uses what it knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) rate: f64,
    pub(crate) momentum: f64,
    pub(crate) dampening: f64,
    pub(crate) nesterov: bool,
    pub(crate) decay: f64,
    pub(crate) maximize: bool,
    pub(crate) betas: (f64, f64),
    pub(crate) eps: f64,
    pub(crate) amsgrad: bool,
    pub(crate) rate_decay: f64,
    pub(crate) start: f64,
    pub(crate) alpha: f64,
    pub(crate) centered: bool,
}

/// A parameter and what is remembered of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Number {
    pub(crate) param: f64,
    pub(crate) memory: [f64; 3],
    pub(crate) steps: i32,
}

pub(crate) type Formula = fn(&Settings, &mut Number, f64);

fn signed(s: &Settings, grad: f64) -> f64 {
    if s.maximize { -grad } else { grad }
}

pub(crate) fn sgd(s: &Settings, n: &mut Number, grad: f64) {
    n.steps += 1;
    let mut grad = signed(s, grad) + s.decay * n.param;
    if s.momentum != 0.0 {
        n.memory[0] =
            if n.steps == 1 { grad } else { s.momentum * n.memory[0] + (1.0 - s.dampening) * grad };
        grad = if s.nesterov { grad + s.momentum * n.memory[0] } else { n.memory[0] };
    }
    n.param -= s.rate * grad;
}

fn adam_by(s: &Settings, n: &mut Number, grad: f64) {
    n.steps += 1;
    let (first, second) = s.betas;
    n.memory[0] = first * n.memory[0] + (1.0 - first) * grad;
    n.memory[1] = second * n.memory[1] + (1.0 - second) * grad * grad;
    n.memory[2] = n.memory[2].max(n.memory[1]);
    let square = if s.amsgrad { n.memory[2] } else { n.memory[1] };
    let mean = n.memory[0] / (1.0 - first.powi(n.steps));
    let root = (square / (1.0 - second.powi(n.steps))).sqrt();
    n.param -= s.rate * mean / (root + s.eps);
}

pub(crate) fn adam(s: &Settings, n: &mut Number, grad: f64) {
    let grad = signed(s, grad) + s.decay * n.param;
    adam_by(s, n, grad);
}

pub(crate) fn adamw(s: &Settings, n: &mut Number, grad: f64) {
    n.param -= s.rate * s.decay * n.param;
    adam_by(s, n, signed(s, grad));
}

pub(crate) fn adagrad(s: &Settings, n: &mut Number, grad: f64) {
    if n.steps == 0 {
        n.memory[0] = s.start;
    }
    n.steps += 1;
    let rate = s.rate / (1.0 + f64::from(n.steps - 1) * s.rate_decay);
    let grad = signed(s, grad) + s.decay * n.param;
    n.memory[0] += grad * grad;
    n.param -= rate * grad / (n.memory[0].sqrt() + s.eps);
}

pub(crate) fn rmsprop(s: &Settings, n: &mut Number, grad: f64) {
    n.steps += 1;
    let grad = signed(s, grad) + s.decay * n.param;
    n.memory[0] = s.alpha * n.memory[0] + (1.0 - s.alpha) * grad * grad;
    let mut variance = n.memory[0];
    if s.centered {
        n.memory[1] = s.alpha * n.memory[1] + (1.0 - s.alpha) * grad;
        variance -= n.memory[1] * n.memory[1];
    }
    let step = grad / (variance.sqrt() + s.eps);
    if s.momentum > 0.0 {
        n.memory[2] = s.momentum * n.memory[2] + step;
        n.param -= s.rate * n.memory[2];
    } else {
        n.param -= s.rate * step;
    }
}

/// Of the paper: the direction, then both decays.
pub(crate) fn lion(s: &Settings, n: &mut Number, grad: f64) {
    let (first, second) = s.betas;
    let mean = first * n.memory[0] + (1.0 - first) * grad;
    let sign = if mean == 0.0 { 0.0 } else { mean.signum() };
    n.param -= s.rate * (sign + s.decay * n.param);
    n.memory[0] = second * n.memory[0] + (1.0 - second) * grad;
}
