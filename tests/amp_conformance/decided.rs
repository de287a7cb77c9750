//! A recorded call against [`PolicySet::decide`].

use crate::cases::{Call, dtype};
use tracecast::DType;
use tracecast::ir::policy::{Decision, PolicySet, Query};

/// What our tables say about a call.
pub(crate) fn decide(set: &PolicySet, call: &Call<'_>) -> Decision {
    let operands: Vec<_> = call.operands.iter().map(|(_, info)| *info).collect();
    set.decide(&Query {
        overload: &call.overload,
        dtype_arg: Some(call.explicit),
        ..Query::new(&call.op, &operands, &call.region)
    })
}

/// Every difference between what was decided and what was recorded.
pub(crate) fn differences(call: &Call<'_>, decision: &Decision) -> Vec<String> {
    let expect = &call.case["expect"];
    let mut found = Vec::new();
    let mut compare = |what: &str, is: String, should: String| {
        if is != should {
            found.push(format!("{what}: {is}, recorded {should}"));
        }
    };
    let class = decision.error.as_ref().map_or("none", |error| error.class());
    compare("error", class.to_owned(), expect["error"].as_str().unwrap_or("none").to_owned());
    if decision.error.is_some() {
        return found;
    }
    let argument = decision.dtype_arg.map_or("none", DType::name);
    compare("dtype argument", argument.to_owned(), recorded_dtype_argument(call).to_owned());
    if let Some((is, should)) = casts(call, decision) {
        compare("casts", is, should);
    }
    // The list that an op is in decides nothing where the region is off.
    let list = call.case["policy"].as_str().filter(|_| !call.region.is_off());
    if let Some(policy) = list.filter(|policy| !policy.starts_with('(')) {
        compare("policy", decision.policy.to_string(), policy.to_owned());
    }
    found
}

/// The casts as text, ours and the recorded ones.
fn casts(call: &Call<'_>, decision: &Decision) -> Option<(String, String)> {
    let recorded = call.case["expect"]["casts"].as_array()?;
    let paths: Vec<_> = recorded.iter().map(|cast| cast[0].as_str().expect("a path")).collect();
    // One tensor passed twice was recorded under one of its paths.
    let aliased = paths.iter().any(|path| paths.iter().filter(|other| *other == path).count() > 1);
    let line = |path: &str, from: DType, to: DType| {
        format!("{}:{from}->{to}", if aliased { "" } else { path })
    };
    let pairs = recorded.iter().zip(&paths);
    let mut should: Vec<_> =
        pairs.map(|(cast, path)| line(path, dtype(&cast[1]), dtype(&cast[2]))).collect();
    let casts = call.operands.iter().zip(&decision.casts);
    let mut is: Vec<_> = casts
        .filter_map(|((path, info), cast)| cast.map(|to| line(path, info.dtype, to)))
        .collect();
    should.sort();
    is.sort();
    Some((is.join(" "), should.join(" ")))
}

/// What was put in the dtype argument. The upstream lists leave it out for the softmax functions,
/// where only an f32 result of a low operand, without any cast, shows that it was there.
fn recorded_dtype_argument<'c>(call: &Call<'c>) -> &'c str {
    let expect = &call.case["expect"];
    let silent = call.case.get("list").is_some() && matches!(&*call.op, "softmax" | "log_softmax");
    let by_result = silent
        && expect["casts"].as_array().is_some_and(Vec::is_empty)
        && expect["out"] != call.case["args"][0]["tensor"];
    if by_result { &expect["out"] } else { &expect["dtype_argument"] }.as_str().unwrap_or("none")
}
