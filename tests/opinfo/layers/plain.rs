//! Layers that take tensors and give one: activations, losses, paddings, norms, tables and matrix
//! products.

use super::settings::Settings;
use super::{Made, one, three, two};
use tracecast::Tensor;
use tracecast::nn::*;

/// The layer, if there is one of that name.
pub(super) fn made(name: &str, s: &Settings<'_>) -> Made {
    let name = name.strip_prefix("nn.")?;
    activation(name, s)
        .or_else(|| curve(name, s))
        .or_else(|| loss(name, s))
        .or_else(|| loss_of_classes(name, s))
        .or_else(|| padding(name, s))
        .or_else(|| other(name, s))
}

fn activation(name: &str, s: &Settings<'_>) -> Made {
    let inplace = || s.flag(usize::MAX, "inplace", false);
    let made = match name {
        "ReLU" => one(Relu),
        "ReLU6" => one(Relu6),
        "SiLU" => one(Silu),
        "Mish" => one(Mish),
        "Tanh" => one(Tanh),
        "Tanhshrink" => one(Tanhshrink),
        "Sigmoid" => one(Sigmoid),
        "LogSigmoid" => one(LogSigmoid),
        "Hardswish" => one(Hardswish),
        "Hardsigmoid" => one(Hardsigmoid),
        "Softsign" => one(Softsign),
        "SELU" => one(Selu),
        "Softmax2d" => one(Softmax2d),
        "Identity" => one(Identity),
        _ => return None,
    };
    Some(inplace().and(made))
}

fn curve(name: &str, s: &Settings<'_>) -> Made {
    let float = |at, name, absent: f64| Ok::<f64, String>(s.float(at, name)?.unwrap_or(absent));
    let dim = |absent: Option<i64>| s.int(0, "dim")?.or(absent).ok_or("takes a `dim`".to_owned());
    let made = || {
        s.flag(usize::MAX, "inplace", false)?;
        match name {
            "ELU" => one(Elu::new(float(0, "alpha", 1.0)?)),
            "CELU" => one(Celu::new(float(0, "alpha", 1.0)?)),
            "LeakyReLU" => one(LeakyRelu::new(float(0, "negative_slope", 0.01)?)),
            "Hardshrink" => one(Hardshrink::new(float(0, "lambd", 0.5)?)),
            "Softshrink" => one(Softshrink::new(float(0, "lambd", 0.5)?)),
            "Hardtanh" => one(Hardtanh::new(float(0, "min_val", -1.0)?, float(1, "max_val", 1.0)?)),
            "Softplus" => one(Softplus::new(float(0, "beta", 1.0)?, float(1, "threshold", 20.0)?)),
            "Threshold" => {
                one(Threshold::new(float(0, "threshold", 0.0)?, float(1, "value", 0.0)?))
            }
            "GLU" => one(Glu::new(dim(Some(-1))?)),
            "Softmax" => one(Softmax::new(dim(None)?)),
            "Softmin" => one(Softmin::new(dim(None)?)),
            "LogSoftmax" => one(LogSoftmax::new(dim(None)?)),
            "GELU" => match s.text(0, "approximate")? {
                Some("tanh") => one(GeluTanh),
                _ => one(Gelu),
            },
            "PReLU" => {
                let weights = s.int(0, "num_parameters")?.unwrap_or(1);
                let weights = usize::try_from(weights).map_err(|e| e.to_string())?;
                one(PRelu::new(weights).start(float(1, "init", 0.25)?).dtype(s.dtype))
            }
            _ => Err(String::new()),
        }
    };
    const NAMES: &[&str] = names! {
        "ELU" "CELU" "LeakyReLU" "Hardshrink" "Softshrink" "Hardtanh" "Softplus" "Threshold" "GLU"
        "Softmax" "Softmin" "LogSoftmax" "GELU" "PReLU"
    };
    NAMES.contains(&name).then(made)
}

fn reduction(s: &Settings<'_>) -> Result<Reduction, String> {
    Ok(match s.text(usize::MAX, "reduction")? {
        Some("sum") => Reduction::Sum,
        Some("none") => Reduction::None,
        _ => Reduction::Mean,
    })
}

fn loss(name: &str, s: &Settings<'_>) -> Made {
    let float = |name, absent: f64| Ok::<f64, String>(s.float(usize::MAX, name)?.unwrap_or(absent));
    let flag = |name, absent| s.flag(usize::MAX, name, absent);
    let made = || match name {
        "L1Loss" => two(L1Loss::new().reduction(reduction(s)?)),
        "MSELoss" => two(MseLoss::new().reduction(reduction(s)?)),
        "SmoothL1Loss" => {
            two(SmoothL1Loss::new().beta(float("beta", 1.0)?).reduction(reduction(s)?))
        }
        "HuberLoss" => two(HuberLoss::new().delta(float("delta", 1.0)?).reduction(reduction(s)?)),
        "SoftMarginLoss" => two(SoftMarginLoss::new().reduction(reduction(s)?)),
        "MultiLabelMarginLoss" => two(MultiLabelMarginLoss::new().reduction(reduction(s)?)),
        "HingeEmbeddingLoss" => {
            let loss = HingeEmbeddingLoss::new().margin(float("margin", 1.0)?);
            two(loss.reduction(reduction(s)?))
        }
        "PoissonNLLLoss" => {
            let loss = PoissonNllLoss::new().log_input(flag("log_input", true)?);
            let loss = loss.full(flag("full", false)?).eps(float("eps", 1e-8)?);
            two(loss.reduction(reduction(s)?))
        }
        "GaussianNLLLoss" => {
            let loss = GaussianNllLoss::new().full(flag("full", false)?).eps(float("eps", 1e-6)?);
            three(loss.reduction(reduction(s)?))
        }
        "KLDivLoss" => {
            let is_batch_mean = s.text(usize::MAX, "reduction")? == Some("batchmean");
            let loss = KlDivLoss::new().log_target(flag("log_target", false)?);
            two(loss.batch_mean(is_batch_mean).reduction(reduction(s)?))
        }
        "MarginRankingLoss" => {
            let loss = MarginRankingLoss::new().margin(float("margin", 0.0)?);
            three(loss.reduction(reduction(s)?))
        }
        "CosineEmbeddingLoss" => {
            let loss = CosineEmbeddingLoss::new().margin(float("margin", 0.0)?);
            three(loss.reduction(reduction(s)?))
        }
        "TripletMarginLoss" => {
            let loss = TripletMarginLoss::new().margin(float("margin", 1.0)?).p(float("p", 2.0)?);
            let loss = loss.eps(float("eps", 1e-6)?).swap(flag("swap", false)?);
            three(loss.reduction(reduction(s)?))
        }
        _ => Err(String::new()),
    };
    const NAMES: &[&str] = names! {
        "L1Loss" "MSELoss" "SmoothL1Loss" "HuberLoss" "SoftMarginLoss" "MultiLabelMarginLoss"
        "HingeEmbeddingLoss" "PoissonNLLLoss" "GaussianNLLLoss" "KLDivLoss" "MarginRankingLoss"
        "CosineEmbeddingLoss" "TripletMarginLoss"
    };
    NAMES.contains(&name).then(made)
}

/// Gives a layer the weights of that name, if there are some.
fn weighed<L>(
    s: &Settings<'_>,
    name: &str,
    layer: L,
    with: impl FnOnce(L, Tensor) -> L,
) -> Result<L, String> {
    Ok(match s.tensor(usize::MAX, name)? {
        Some(weight) => with(layer, weight),
        None => layer,
    })
}

fn loss_of_classes(name: &str, s: &Settings<'_>) -> Made {
    let ignored = || Ok::<i64, String>(s.int(usize::MAX, "ignore_index")?.unwrap_or(-100));
    let float = |name, absent: f64| Ok::<f64, String>(s.float(usize::MAX, name)?.unwrap_or(absent));
    let made = || match name {
        "CrossEntropyLoss" => {
            let loss = CrossEntropyLoss::new().ignore_index(ignored()?);
            let loss = loss.label_smoothing(float("label_smoothing", 0.0)?);
            let loss = weighed(s, "weight", loss, CrossEntropyLoss::weight)?;
            two(loss.reduction(reduction(s)?))
        }
        "NLLLoss" => {
            let loss = NllLoss::new().ignore_index(ignored()?);
            two(weighed(s, "weight", loss, NllLoss::weight)?.reduction(reduction(s)?))
        }
        "BCELoss" => {
            let loss = weighed(s, "weight", BceLoss::new(), BceLoss::weight)?;
            two(loss.reduction(reduction(s)?))
        }
        "BCEWithLogitsLoss" => {
            let loss = BceWithLogitsLoss::new();
            let loss = weighed(s, "weight", loss, BceWithLogitsLoss::weight)?;
            let loss = weighed(s, "pos_weight", loss, BceWithLogitsLoss::pos_weight)?;
            two(loss.reduction(reduction(s)?))
        }
        "MultiMarginLoss" => {
            let loss = MultiMarginLoss::new().p(float("p", 1.0)?).margin(float("margin", 1.0)?);
            let loss = weighed(s, "weight", loss, MultiMarginLoss::weight)?;
            two(loss.reduction(reduction(s)?))
        }
        "MultiLabelSoftMarginLoss" => {
            let loss = MultiLabelSoftMarginLoss::new();
            let loss = weighed(s, "weight", loss, MultiLabelSoftMarginLoss::weight)?;
            two(loss.reduction(reduction(s)?))
        }
        "LinearCrossEntropyLoss" => {
            let loss =
                LinearCrossEntropyLoss::new(s.size(0, "in_features")?, s.size(1, "classes")?);
            let sizes = s.ints(usize::MAX, "out_features")?.unwrap_or_default();
            let sizes: Vec<usize> = sizes.iter().filter_map(|n| usize::try_from(*n).ok()).collect();
            let loss = loss.outputs(sizes).ignore_index(ignored()?).dtype(s.dtype);
            let loss = loss.label_smoothing(float("label_smoothing", 0.0)?);
            let loss = weighed(s, "weight", loss, LinearCrossEntropyLoss::weight)?;
            let has_bias = s.flag(usize::MAX, "bias", false)?;
            let loss = if has_bias { loss.with_bias() } else { loss };
            two(loss.reduction(reduction(s)?))
        }
        _ => Err(String::new()),
    };
    const NAMES: &[&str] = names! {
        "CrossEntropyLoss" "NLLLoss" "BCELoss" "BCEWithLogitsLoss" "MultiMarginLoss"
        "MultiLabelSoftMarginLoss" "LinearCrossEntropyLoss"
    };
    NAMES.contains(&name).then(made)
}

/// The sizes of a padding: one of them stands for all.
fn sizes<const N: usize>(s: &Settings<'_>) -> Result<[i64; N], String> {
    let given = s.ints(0, "padding")?.ok_or("takes a `padding`")?;
    match given[..] {
        [one] => Ok([one; N]),
        _ => given.try_into().map_err(|_| format!("takes {N} sizes")),
    }
}

fn padding(name: &str, s: &Settings<'_>) -> Made {
    let value = || s.float(1, "value")?.ok_or("takes a `value`".to_owned());
    let made = || match name {
        "ConstantPad1d" => one(ConstantPad1d::new(sizes(s)?, value()?)),
        "ConstantPad2d" => one(ConstantPad2d::new(sizes(s)?, value()?)),
        "ConstantPad3d" => one(ConstantPad3d::new(sizes(s)?, value()?)),
        "ZeroPad1d" => one(ZeroPad1d::new(sizes(s)?)),
        "ZeroPad2d" => one(ZeroPad2d::new(sizes(s)?)),
        "ZeroPad3d" => one(ZeroPad3d::new(sizes(s)?)),
        "ReflectionPad1d" => one(ReflectionPad1d::new(sizes(s)?)),
        "ReflectionPad2d" => one(ReflectionPad2d::new(sizes(s)?)),
        "ReflectionPad3d" => one(ReflectionPad3d::new(sizes(s)?)),
        "ReplicationPad1d" => one(ReplicationPad1d::new(sizes(s)?)),
        "ReplicationPad2d" => one(ReplicationPad2d::new(sizes(s)?)),
        "ReplicationPad3d" => one(ReplicationPad3d::new(sizes(s)?)),
        "CircularPad1d" => one(CircularPad1d::new(sizes(s)?)),
        "CircularPad2d" => one(CircularPad2d::new(sizes(s)?)),
        "CircularPad3d" => one(CircularPad3d::new(sizes(s)?)),
        _ => Err(String::new()),
    };
    let is_padding = name.contains("Pad") && name.ends_with('d');
    is_padding.then(made)
}

fn other(name: &str, s: &Settings<'_>) -> Made {
    let shape = || {
        let sizes = s.ints(0, "normalized_shape")?.ok_or("takes a shape")?;
        let sizes = sizes.into_iter().map(|n| usize::try_from(n).map_err(|e| e.to_string()));
        sizes.collect::<Result<Vec<usize>, String>>()
    };
    let made = || match name {
        "Linear" => {
            let layer = Linear::new(s.size(0, "in_features")?, s.size(1, "out_features")?);
            let layer = layer.dtype(s.dtype);
            one(if s.flag(2, "bias", true)? { layer } else { layer.without_bias() })
        }
        "Bilinear" => {
            let [first, second] = [s.size(0, "in1_features")?, s.size(1, "in2_features")?];
            let layer = Bilinear::new(first, second, s.size(2, "out_features")?).dtype(s.dtype);
            two(if s.flag(3, "bias", true)? { layer } else { layer.without_bias() })
        }
        "LayerNorm" => {
            let layer = LayerNorm::over(&shape()?[..]).dtype(s.dtype);
            let layer = layer.eps(s.float(1, "eps")?.unwrap_or(1e-5));
            let affine = s.flag(2, "elementwise_affine", true)?;
            let layer = if affine { layer } else { layer.without_affine() };
            one(if s.flag(3, "bias", true)? { layer } else { layer.without_bias() })
        }
        "RMSNorm" => {
            let layer = RmsNorm::over(&shape()?[..]).dtype(s.dtype);
            let layer = match s.float(1, "eps")? {
                Some(eps) => layer.eps(eps),
                None => layer,
            };
            let affine = s.flag(2, "elementwise_affine", true)?;
            one(if affine { layer } else { layer.without_affine() })
        }
        "Embedding" => {
            let [rows, width] = [s.size(0, "num_embeddings")?, s.size(1, "embedding_dim")?];
            let layer = Embedding::new(rows, width).dtype(s.dtype);
            one(match s.int(2, "padding_idx")? {
                Some(index) => layer.padding(index),
                None => layer,
            })
        }
        _ => Err(String::new()),
    };
    ["Linear", "Bilinear", "LayerNorm", "RMSNorm", "Embedding"].contains(&name).then(made)
}
