//! The recorded cases, read: calls with their operands, and what autocast was seen to do.

use crate::files::file;
use serde_json::Value;
use tracecast::DType;
use tracecast::ir::policy::{DeviceType, OperandInfo, OperandKind, Region};

/// The recorded cases.
pub(crate) fn read() -> Value {
    file("autocast-cases.json")
}

/// The cases of a section; none if the file has no such section.
pub(crate) fn section<'c>(cases: &'c Value, name: &str) -> &'c [Value] {
    cases[name].as_array().map_or(&[], Vec::as_slice)
}

/// A dtype by the name that the cases have for it.
pub(crate) fn dtype(value: &Value) -> DType {
    let name = value.as_str().expect("a dtype is a string");
    let name = if name == "f8e4m3fn" { "f8e4m3" } else { name };
    name.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// A device type by its name.
pub(crate) fn device(value: &Value) -> DeviceType {
    value.as_str().expect("a device is a string").parse().unwrap_or_else(|error| panic!("{error}"))
}

/// One call under one region.
pub(crate) struct Call<'c> {
    /// The case as it stands in the file.
    pub(crate) case: &'c Value,
    /// The op.
    pub(crate) op: String,
    /// Its overload.
    pub(crate) overload: String,
    /// Where its operands live if they do not say.
    pub(crate) home: DeviceType,
    /// What it runs under.
    pub(crate) region: Region,
    /// Every operand with the path by which the case names it.
    pub(crate) operands: Vec<(String, OperandInfo)>,
    /// The dtype argument if one is given.
    pub(crate) explicit: Option<DType>,
}

/// A call by its name in the dispatcher: `op` or `op.overload`.
pub(crate) fn by_aten_name(case: &Value) -> Call<'_> {
    let name = case["op"].as_str().expect("op is a string");
    let (op, overload) = name.split_once('.').unwrap_or((name, ""));
    Call::new(case, op, overload)
}

/// A call by its Python name, which ends in one of the overloads.
pub(crate) fn by_python_name(case: &Value) -> Call<'_> {
    let args = case["args"].as_array().expect("args is a list");
    let is_tensor = |at: usize| args.get(at).is_some_and(|arg| arg.get("tensor").is_some());
    let has_dim = args.len() > 1 || case.pointer("/kwargs/dim").is_some();
    let name = case["op"].as_str().expect("op is a string");
    let op = if name.ends_with("__") { name.trim_matches('_') } else { name };
    let overload = match op {
        "pow" if !is_tensor(0) => "Scalar",
        "pow" if is_tensor(1) => "Tensor_Tensor",
        "pow" => "Tensor_Scalar",
        "conv_transpose2d" | "conv_transpose3d" => "input",
        "norm" if case.pointer("/kwargs/dim").is_some() => "ScalarOpt_dim",
        "norm" => "Scalar",
        "softmax" | "log_softmax" => "int",
        "sum" if has_dim => "dim_IntList",
        "prod" if has_dim => "dim_int",
        "frobenius_norm" => "dim",
        "nuclear_norm" if has_dim => "dim",
        _ => "",
    };
    Call::new(case, op, overload)
}

impl<'c> Call<'c> {
    fn new(case: &'c Value, op: &str, overload: &str) -> Call<'c> {
        let home = device(&case["device"]);
        let on = case.get("region_device").map_or(home, device);
        let low = dtype(case.get("region").unwrap_or(&case["region_dtype"]));
        // With a dtype that the device does not take the region is off.
        let (region, _) = Region::default()
            .enter(on, Some(low), true, None)
            .unwrap_or_else(|error| panic!("{error}"));
        let mut call = Call {
            case,
            op: op.to_owned(),
            overload: overload.to_owned(),
            home,
            region: region.with_scope(1),
            operands: Vec::new(),
            explicit: None,
        };
        call.collect();
        call
    }

    fn collect(&mut self) {
        let args = self.case["args"].as_array().expect("args is a list");
        for (at, value) in args.iter().enumerate() {
            self.argument(at.to_string(), value);
        }
        for (name, value) in
            self.case.get("kwargs").and_then(Value::as_object).into_iter().flatten()
        {
            self.argument(name.clone(), value);
        }
    }

    fn argument(&mut self, path: String, value: &Value) {
        self.explicit = self.explicit.or_else(|| value.get("dtype").map(dtype));
        let items = value.as_array();
        let tensors: Vec<_> = match items {
            Some(items) => {
                items.iter().enumerate().map(|(at, item)| (format!("{path}[{at}]"), item)).collect()
            }
            None => vec![(path.clone(), value)],
        };
        for (full, value) in tensors {
            let Some(tensor) = value.get("tensor") else { continue };
            let kind = match (self.op.as_str(), path.as_str()) {
                ("index_put", "1") | (_, "out") => OperandKind::Ignored,
                ("bilinear", "3") | (_, "attn_mask") => OperandKind::Optional,
                _ if items.is_some() => OperandKind::ListItem,
                _ => OperandKind::Tensor,
            };
            let device = value.get("on").map_or(self.home, device);
            self.operands.push((full, OperandInfo { dtype: dtype(tensor), device, kind }));
        }
    }
}
