//! Any bytes as a policy file: an error, or a set, table or list that writes and reads back to the
//! same, can be reviewed and compared, and decides.

use std::sync::Arc;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::policy::{
    DeviceType, PolicyFile, PolicySet, PolicyTable, Region, ScriptOperand, ScriptTable, Target,
    matches_name, review,
};
use tracecast_ir::text::did_you_mean;
use tracecast_ir::{DType, TensorType, Tracer, ops};

/// Parts of the names that patterns are tried on.
const PARTS: usize = 200;

/// Tries it.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let hint = |name: &str, known: &mut dyn Iterator<Item = &str>| did_you_mean(name, known);
    let found = review(&text, &ops::known(), &hint);
    let lines = text.lines().count().max(1) + 1;
    match PolicyFile::parse(&text) {
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(found.is_err(), "what does not read was reviewed: {error}");
            return;
        }
        Ok(PolicyFile::Set(set)) => decides(*set),
        Ok(PolicyFile::Table(table)) => {
            let again = PolicyTable::parse(&table.to_string());
            assert_eq!(again.as_ref(), Ok(&*table), "{table}");
            table.diff(PolicyTable::named("torch-cpu").as_deref().expect("a built-in table"));
            let set = PolicyFile::Table(table).into_set();
            decides(set.expect("a table stands for a set"));
        }
        Ok(PolicyFile::Script(script)) => {
            assert_eq!(ScriptTable::parse(&script.to_string()).as_ref(), Ok(&*script), "{script}");
            inserts(&script);
        }
    }
    for finding in found.unwrap_or_else(|error| panic!("reads and cannot be reviewed: {error}")) {
        assert!((1..=lines).contains(&finding.line) && finding.column >= 1, "{finding}");
        assert!(!finding.message.is_empty());
    }
}

/// Asks which casts the pass of a list inserts in front of its ops, and what they do.
fn inserts(script: &ScriptTable) {
    let (region, _) = Region::default()
        .enter(DeviceType::Cpu, Some(DType::BF16), true, None)
        .expect("the cpu takes bf16");
    let operands = [ScriptOperand::Known(DType::BF16), ScriptOperand::Unknown];
    for (op, class) in script.iter() {
        assert_eq!(script.class(op), Some(class));
        for (has_dtype, mutates) in [(false, false), (true, false), (false, true)] {
            let Ok(Some(cast)) = script.cast(op, &operands[..], has_dtype, mutates) else {
                continue;
            };
            assert!(!mutates);
            for dtype in [DType::F32, DType::BF16, DType::I64] {
                cast.apply(dtype, DeviceType::Cpu, &region);
                cast.apply(dtype, DeviceType::Cuda, &region);
            }
        }
    }
}

/// Writes a set and reads it, compares it with PyTorch's, tries its patterns on long names, and
/// records a program under it.
fn decides(set: PolicySet) {
    let text = set.to_toml();
    let again = PolicySet::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert!(again == set && again.hash() == set.hash(), "{text}");
    assert!(set.diff(&again).is_empty(), "{text}");
    let standard = PolicySet::standard();
    let changes = set.diff(&standard);
    assert_eq!(changes.is_empty(), standard.diff(&set).is_empty(), "{text}");
    assert!(changes.iter().all(|change| !change.to_string().is_empty()), "{text}");
    let mut scopes = vec![vec!["layer"; PARTS].join("."), vec!["a"; PARTS].join(".")];
    for rule in set.rules() {
        rule.rule_id();
        if let Target::Module(pattern) | Target::Node(pattern) = &rule.target {
            scopes.iter().for_each(|scope| _ = std::hint::black_box(matches_name(pattern, scope)));
            let literal = pattern.replace('*', "x");
            assert!(matches_name(pattern, &literal), "{pattern} on {literal}");
            scopes.push(literal);
        }
    }
    record(set, &scopes);
}

/// Records a few ops in modules of these names; an error is one that has a message.
fn record(set: PolicySet, scopes: &[String]) {
    let tracer = Tracer::with_policies("policies", Arc::new(set));
    let x = tracer.input("x", TensorType::new(DType::F32, [4, 4]));
    for (device, dtype) in [(DeviceType::Cpu, DType::BF16), (DeviceType::Cuda, DType::F16)] {
        let (region, _) =
            Region::default().enter(device, Some(dtype), true, None).expect("both are taken");
        tracer.in_region(&region, || {
            for scope in scopes.iter().take(6) {
                let y = tracer.scope(scope, || x.matmul(x).softmax(-1).sum(()));
                tracer.scope(scope, || y.add(x).gelu(None).exp());
            }
        });
    }
    if let Some(error) = tracer.error() {
        assert!(!error.to_string().is_empty());
    }
}
