//! A recorded call of an op that Tracecast has, recorded in a tracer under the region of the case.

use crate::cases::{Call, dtype};
use crate::form::{Form, form};
use serde_json::Value;
use tracecast::DType;
use tracecast::ir::Tracer;
use tracecast::ir::ops::find;
use tracecast::ir::policy::DeviceType;

/// A list of names.
macro_rules! names {
    ($($name:tt)*) => { [$(stringify!($name)),*] };
}

/// The ops of the cases that are none here: some do not exist, and some are functions of several
/// ops (`docs/ops.md` lists them).
const ABSENT_OPS: &[&str] = &names! {
    _addmm_activation _convolution _grid_sampler_2d_cpu_fallback _log_softmax _lu_with_info
    _native_multi_head_attention _scaled_dot_product_flash_attention _softmax block_diag
    cartesian_prod celu chain_matmul cholesky_inverse cholesky_solve column_stack constant_pad_nd
    conv_tbc corrcoef count_nonzero cov ctc_loss cudnn_convolution cudnn_convolution_transpose diag
    dstack equal fake_quantize_per_tensor_affine fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft
    fft_ifft2 fft_ifftn fft_ihfft fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn flip
    fractional_max_pool2d fractional_max_pool3d frobenius_norm geqrf grid_sampler_2d grid_sampler_3d
    gru_cell hardtanh hstack index_select inner instance_norm inverse kron leaky_relu
    linalg_cholesky linalg_cholesky_ex linalg_cond linalg_det linalg_eig linalg_eigh linalg_eigvals
    linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex linalg_lstsq
    linalg_matrix_norm linalg_matrix_power linalg_matrix_rank linalg_matrix_sqrth linalg_multi_dot
    linalg_norm linalg_qr linalg_slogdet linalg_solve linalg_svd linalg_svdvals linalg_tensorinv
    linalg_tensorsolve lstm_cell lu_solve masked_fill max multilabel_margin_loss_forward nanmean
    nanquantile native_batch_norm native_group_norm nll_loss2d norm nuclear_norm orgqr ormqr outer
    pdist pinverse pixel_shuffle polar rnn_relu_cell rnn_tanh_cell roll round select selu stft svd
    transpose trapezoid triangular_solve tril triu true_divide unfold view_as_complex vstack
};

/// As [`ABSENT_OPS`], of calls that no case of our own file has: functions of matrices that take a
/// decomposition, or a series whose length depends on the data.
const ABSENT_ELSEWHERE: &[&str] = &names! {
    cholesky det linalg_lu linalg_matrix_exp linalg_pinv logdet lu_unpack matrix_exp qr slogdet
};

/// The calls that have no form here, by their op with its overload, or by id, and why.
const ABSENT_FORMS: &[(&str, &str)] = &[
    ("bernoulli", "takes a generator here"),
    ("dropout", "takes a generator here"),
    ("lerp.Tensor", "a weight that is a tensor"),
    ("pad", "other arguments: `pad_last` has these"),
    ("pow.Scalar", "a number as the base"),
    ("quantile.scalar", "the quantile is a tensor"),
    (
        "cpu.torch_fp32.3.margin_ranking_loss.bf16.torch",
        "tensors of other numbers of axes: `torch.nn.functional` refuses them as well",
    ),
    (
        "cpu.torch_fp32.3.margin_ranking_loss.f16.torch",
        "tensors of other numbers of axes: `torch.nn.functional` refuses them as well",
    ),
    ("cpu/matmul/0/first_f64_rest_low/bf16", "a product of elements, which promotes"),
    (
        "cuda.torch_fp32.30.margin_ranking_loss.bf16.torch",
        "tensors of other numbers of axes: `torch.nn.functional` refuses them as well",
    ),
    (
        "cuda.torch_fp32.30.margin_ranking_loss.f16.torch",
        "tensors of other numbers of axes: `torch.nn.functional` refuses them as well",
    ),
    ("cuda/matmul/0/first_f64_rest_f32/f16", "a product of elements, which promotes"),
    ("cuda/renorm/2/f32/f16", "infinity, which the file has no word for"),
    ("mps/matmul/0/f64/f16", "a product of elements, which promotes"),
];

/// Ops whose kernels were recorded to take floats of two dtypes beside each other, with the dtype
/// of the first as the result's. They are refused here: a row of `docs/parity.md`.
const OF_ONE_DTYPE: &[&str] = &names! {
    addbmm addmm cdist conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    convolution cross index_add index_copy index_put mm mv
};

/// Calls whose `out` is another here on purpose.
const OTHERWISE: &[(&str, &str)] = &[
    (
        "cuda/binary_cross_entropy_with_logits/0/first_f64_rest_low/f16",
        "computed in the place of the target there, whatever is beside it",
    ),
    ("mps/trace/0/low/f16", "recorded without its kernel; the sum that it is made of is listed"),
];

/// What came of recording a call.
pub(crate) enum Recorded {
    /// The op is not in the table, or not in this form, as one of the lists says: `out` is nothing
    /// to compare.
    Absent(&'static str),
    /// The op writes to an operand, which none does here: functional forms are compared.
    Writes,
    /// An operand has a dtype without kernels, which cannot be an input of a program.
    NoKernels,
    /// It has no form here and no list says so, or one does and it has.
    Unlisted(String),
    /// The dtypes of the results, or why the op was refused.
    Ran(Result<Vec<DType>, String>),
}

/// Records a call.
pub(crate) fn record(call: &Call<'_>) -> Recorded {
    let is_out = call.overload == "out" || call.overload.ends_with("_out");
    if call.op.ends_with('_') || is_out || call.case.pointer("/kwargs/out").is_some() {
        return Recorded::Writes;
    }
    if let Some(absent) = ABSENT_OPS.iter().chain(ABSENT_ELSEWHERE).find(|op| **op == call.op) {
        return match find(&call.op) {
            None => Recorded::Absent(absent),
            Some(_) => {
                Recorded::Unlisted("the op is here: take it from the list of absent ops".to_owned())
            }
        };
    }
    let [id, op] = [&call.case["id"], &call.case["op"]].map(|text| text.as_str().expect("a text"));
    let absent = ABSENT_FORMS.iter().find(|(of, _)| *of == op || *of == id).map(|(of, _)| *of);
    match (absent, fits(call)) {
        (Some(absent), Err(_)) => return Recorded::Absent(absent),
        (Some(_), Ok(())) => {
            return Recorded::Unlisted("the form is here: take it from ABSENT_FORMS".to_owned());
        }
        (None, Err(why)) => return Recorded::Unlisted(format!("has no form here: {why}")),
        (None, Ok(())) => {}
    }
    if !call.operands.iter().all(|(_, info)| info.dtype.is_computable()) {
        return Recorded::NoKernels;
    }
    let t = Tracer::new("case");
    let Form { def, args, attrs } = form(&t, call, false).expect("it fits");
    let results = t.in_region(&call.region, || t.apply(def, args, attrs));
    Recorded::Ran(match t.error() {
        None => Ok(results.iter().map(|result| result.dtype()).collect()),
        Some(error) => Err(error.to_string()),
    })
}

/// The names of both lists, each of which some case has.
pub(crate) fn absent() -> impl Iterator<Item = &'static str> {
    ABSENT_OPS.iter().copied().chain(ABSENT_FORMS.iter().map(|(of, _)| *of))
}

/// Whether the call has a form here, and operands of these shapes are taken: then what is refused
/// is dtypes.
fn fits(call: &Call<'_>) -> Result<(), String> {
    // PyTorch multiplies elements where the inner axis is 1, and promotes there.
    let inner = call.case["args"][0]["shape"].as_array().and_then(|shape| shape.last());
    let has_f64 = call.operands.iter().any(|(_, info)| info.dtype == DType::F64);
    if call.op == "matmul" && has_f64 && inner.is_some_and(|size| *size == 1) {
        return Err("a product of elements".to_owned());
    }
    let t = Tracer::new("shapes");
    let Form { def, args, attrs } = form(&t, call, true)?;
    t.apply(def, args, attrs);
    t.error().map_or(Ok(()), |error| Err(error.to_string()))
}

/// Compares what came of a call with what was recorded; `None` if there is nothing to compare.
pub(crate) fn difference(call: &Call<'_>, ran: &Result<Vec<DType>, String>) -> Option<String> {
    let expect = &call.case["expect"];
    let refused = expect.get("error").is_some() || expect["kernel_refuses"] == true;
    match ran {
        Err(_) if refused => None,
        Ok(_) if refused => Some("recorded a refusal, and we take it".to_owned()),
        Err(_) if expect["out"].is_null() => None,
        Err(_) if OF_ONE_DTYPE.contains(&call.op.as_str()) && mixes_floats(call) => None,
        // Other devices were recorded without running kernels, which is where f64 beside another
        // float is refused.
        Err(_) if call.home != DeviceType::Cpu && mixes_f64(call) => None,
        Err(message) => Some(format!("out: {message}, recorded {}", expect["out"])),
        Ok(found) => {
            let recorded: Vec<_> = match &expect["out"] {
                Value::Array(list) => list.iter().map(dtype).collect(),
                Value::Null => return None,
                one => vec![dtype(one)],
            };
            let alike = recorded.iter().zip(found).all(|(a, b)| a == b);
            let is_listed = OTHERWISE.iter().any(|(id, _)| call.case["id"] == *id);
            match (alike, is_listed) {
                (true, true) => Some("is alike: take it from OTHERWISE".to_owned()),
                (false, false) => Some(format!("out: {found:?}, recorded {recorded:?}")),
                _ => None,
            }
        }
    }
}

/// True if a call is refused here for its floats of two dtypes, and was recorded with a result.
pub(crate) fn is_of_two_dtypes(call: &Call<'_>, ran: &Result<Vec<DType>, String>) -> bool {
    let expect = &call.case["expect"];
    let refused = expect.get("error").is_some() || expect["kernel_refuses"] == true;
    ran.is_err() && !refused && OF_ONE_DTYPE.contains(&call.op.as_str()) && mixes_floats(call)
}

/// The ops of which [`is_of_two_dtypes`] has to be true of some call.
pub(crate) fn of_one_dtype() -> impl Iterator<Item = &'static str> {
    OF_ONE_DTYPE.iter().copied()
}

fn mixes_floats(call: &Call<'_>) -> bool {
    let floats = || call.operands.iter().map(|(_, info)| info.dtype).filter(|d| d.is_float());
    floats().any(|dtype| Some(dtype) != floats().next())
}

/// True if an f64 operand, which autocast leaves alone, is beside another float.
fn mixes_f64(call: &Call<'_>) -> bool {
    let floats =
        || call.operands.iter().map(|(_, info)| info.dtype).filter(|dtype| dtype.is_float());
    floats().any(|dtype| dtype == DType::F64) && floats().any(|dtype| dtype != DType::F64)
}
