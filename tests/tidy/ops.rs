//! Nothing outside of the op table decides by a particular op: not by its name, not by its record,
//! not by the text of an attribute. What is true of an op is a fact on its record; names print, and
//! few places look ops up by them.

use crate::repository;
use crate::source::code_without_tests;
use crate::tree::{Tree, none};
use std::collections::BTreeSet;
use tracecast_ir::ops;

/// The op table.
const TABLE: &str = "ir/src/ops/";

/// Who asks for the text of a name (`OpName::text`), and what for.
const LOOKED_UP: [(&str, &str); 11] = [
    ("cli/src/ops.rs", "ops that a user may mean; policy tables list ops by name"),
    ("cli/src/policy.rs", "policy tables list ops by name"),
    ("fuzz/src/policy.rs", "policy tables list ops by name"),
    ("ir/src/graph/query.rs", "policies list ops by name"),
    ("ir/src/op/name.rs", "defines it"),
    ("ir/src/policy/source.rs", "policy tables list ops by name"),
    ("ir/src/text/printer.rs", "names that are no words of the text are put in quotes"),
    ("ir/src/text/record.rs", "the parser finds ops by the names in the text"),
    ("ir/src/tracer.rs", "one name stands for one op of the table"),
    ("passes/src/explain/ops.rs", "a report for people gives names as texts"),
    ("src/numerics/mod.rs", "a report for people gives names as texts"),
];

/// Where a text equals the name of an op and means something else.
const HOMONYMS: [(&str, &[&str], &str); 51] = [
    (
        "aten/src/",
        &[
            "add", "bilinear", "cat", "constant", "detach", "div", "dropout", "floor", "linear",
            "mean", "permute", "prod", "reshape", "slice", "stack", "sum", "where",
        ],
        "PyTorch's names of overloads, values of their arguments, and a function of sympy",
    ),
    ("pt2/src/model/", &["constant", "input"], "what a model has, in errors"),
    ("cli/src/dot.rs", &["input"], "a port"),
    ("cli/src/profile.rs", &["cat"], "the category of an event"),
    ("cli/src/training/network.rs", &["relu"], "the name of a module"),
    ("codegen/src/plan/mod.rs", &["argmax"], "a transformation of plans"),
    ("codegen/src/plan/phases/samples.rs", &["exp"], "the beginning of a sample's name"),
    ("codegen/src/routines/names.rs", &["random"], "a routine"),
    ("conformance/kit/src/case.rs", &["input"], "a fact of a case"),
    ("conformance/kit/src/level.rs", &["attention"], "a level"),
    (
        "conformance/kit/src/table.rs",
        &[
            "attention",
            "barrier",
            "batch_norm",
            "cast",
            "cat",
            "group_norm",
            "mul_add",
            "random",
            "softmax",
            "stack",
            "windows",
        ],
        "families of the table",
    ),
    ("examples/sim-npu/src/", &["l1_loss", "softmax"], "policies list ops by name"),
    ("ir/src/kernel/build/attention.rs", &["dropout"], "an attribute"),
    ("ir/src/kernel/emit.rs", &["cat", "gather", "pad"], "messages about loops"),
    ("ir/src/functions/binary.rs", &["where"], "the function in errors"),
    (
        "ir/src/functions/reversed_ops.rs",
        &["bitwise_left_shift", "bitwise_right_shift", "floor_divide", "pow", "remainder", "xlogy"],
        "the functions in errors",
    ),
    ("ir/src/functions/loss.rs", &["mean", "sum"], "how losses are reduced"),
    ("ir/src/functions/resize.rs", &["linear"], "a mode of interpolation"),
    (
        "ir/src/kernel/function.rs",
        &[
            "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "digamma", "erf",
            "erfc", "erfinv", "exp", "exp2", "expm1", "lgamma", "log", "log10", "log1p", "log2",
            "sin", "sinh", "tan", "tanh",
        ],
        "scalar functions",
    ),
    ("ir/src/kernel/forms/attention.rs", &["attention"], "the form"),
    ("ir/src/kernel/forms/scatter.rs", &["add", "mul", "scatter"], "the form, and its combiners"),
    (
        "ir/src/kernel/line/layout.rs",
        &["argmax", "argmin", "logsumexp", "prod", "recurrence", "sum"],
        "scans",
    ),
    ("ir/src/kernel/reduction.rs", &["argmax", "argmin", "prod", "sum"], "reductions"),
    (
        "ir/src/kernel/scalar.rs",
        &[
            "abs", "add", "div", "eq", "floor", "le", "lt", "mul", "mul_add", "ne", "neg",
            "random", "sqrt", "sub",
        ],
        "scalar instructions",
    ),
    ("ir/src/functions/resize.rs", &["bilinear"], "a value of `mode`"),
    ("ir/src/op/exchange.rs", &["mean", "sum"], "how ranks combine numbers"),
    ("ir/src/policy/file.rs", &["scan"], "a rule of promotion"),
    ("ir/src/policy/set.rs", &["scan"], "a rule of promotion"),
    ("ir/src/text/record.rs", &["grad"], "a word of the text: the line asks for a gradient"),
    ("ir/src/tracer.rs", &["input"], "a port"),
    ("passes/src/explain/ops.rs", &["cast"], "a reason"),
    ("passes/src/pass.rs", &["trace"], "the name of what came before any pass"),
    ("src/amp/custom.rs", &["custom_grad"], "the name of the caller in errors"),
    ("src/amp/policy.rs", &["mean"], "state of a scaler"),
    ("src/amp/raw.rs", &["reciprocal_scale"], "the label of an eager program"),
    ("src/nn/activation.rs", &["tanh"], "a value of an attribute of `gelu`"),
    ("src/nn/loss/linear.rs", &["linear"], "the name of a part, as in PyTorch"),
    ("src/nn/loss/mod.rs", &["mean", "sum"], "values of the attribute `reduction`"),
    ("src/nn/upsample.rs", &["bilinear"], "a value of `mode`"),
    ("src/numerics/mod.rs", &["input"], "a port"),
    ("src/optim/adagrad.rs", &["sum"], "state of an optimizer"),
    ("src/report.rs", &["trace"], "the name of a stage"),
    ("src/trace/mod.rs", &["input"], "a port"),
    ("cli/src/", &["kernel"], "a kernel"),
    ("ir/src/eval/", &["kernel"], "the attribute that holds a kernel"),
    ("ir/src/op/mod.rs", &["kernel"], "the kind of the attribute that holds a kernel"),
    ("ir/src/text/", &["kernel"], "a word of the text"),
    ("ir/src/verify/", &["kernel"], "the attribute that holds a kernel"),
    ("passes/src/fuse/", &["kernel"], "the attribute that holds a kernel"),
    ("runtime/src/", &["kernel"], "the attribute that holds a kernel"),
    ("src/", &["kernel"], "a kernel in a report, and the attribute that holds one"),
];

#[test]
fn names_of_ops_are_looked_up_in_few_places() {
    none("asks for the text of an op's name, and is not listed", asking(repository()));
    let idle = LOOKED_UP.iter().filter(|(path, _)| !repository().has(path));
    none("listed, and gone", idle.map(|(path, _)| (*path).to_owned()));
}

#[test]
fn nothing_decides_by_the_name_of_an_op() {
    none("the name of an op in quotes, and not listed", quoting(repository()));
}

#[test]
fn nothing_decides_by_the_record_of_an_op() {
    none("compares with the record of an op", comparing(repository()));
}

#[test]
fn the_kind_of_a_reduction_is_read_in_the_table_only() {
    let of_kind = sources(repository()).filter(|(_, source, _)| source.contains("str(\"kind\")"));
    none("reads the attribute `kind`", of_kind.map(|(path, ..)| path.to_owned()));
}

/// The sources of the crates, without the op table: paths, texts, and the code in them that is not
/// for tests.
fn sources(tree: &Tree) -> impl Iterator<Item = (&str, &str, String)> {
    let is_source = |path: &str| {
        (path.starts_with("src/") || path.contains("/src/")) && !path.starts_with(TABLE)
    };
    let files = tree.ending("rs").filter(move |(path, _)| is_source(path));
    files.map(|(path, source)| (path, source, code_without_tests(path, source)))
}

fn asking(tree: &Tree) -> Vec<String> {
    const ASKS: [&str; 3] = ["name.text()", "name().text()", "OpName::text"];
    let listed = |path: &str| LOOKED_UP.iter().any(|(place, _)| *place == path);
    let asks = |code: &str| ASKS.iter().any(|text| code.contains(text));
    let found = sources(tree).filter(|(path, _, code)| asks(code) && !listed(path));
    found.map(|(path, ..)| path.to_owned()).collect()
}

/// Texts in code that are names of ops.
fn quoting(tree: &Tree) -> Vec<String> {
    let names: BTreeSet<&str> = ops::all().map(|op| op.name.text()).collect();
    let mut found = BTreeSet::new();
    for (path, source, code) in sources(tree) {
        for (at, _) in source.match_indices('"') {
            let behind = &source[at + 1..];
            let Some(text) = behind.find('"').map(|end| &behind[..end]) else { break };
            let is_listed = |text: &str| {
                let listed = HOMONYMS.iter().filter(|(place, ..)| path.starts_with(place));
                listed.into_iter().any(|(_, names, _)| names.contains(&text))
            };
            if names.contains(text) && is_code(source, &code, at) && !is_listed(text) {
                found.insert(format!("{path}: \"{text}\""));
            }
        }
    }
    found.into_iter().collect()
}

/// True if a text begins there that is neither in a comment nor for tests: what stands before it is
/// code.
fn is_code(source: &str, code: &str, at: usize) -> bool {
    let Some(before) = source[..at].trim_end().len().checked_sub(1) else { return true };
    code.as_bytes().get(before) == Some(&source.as_bytes()[before])
}

/// Comparisons with a record of the table, or with its name.
fn comparing(tree: &Tree) -> Vec<String> {
    let records = records(tree);
    let mut found = Vec::new();
    for (path, _, code) in sources(tree) {
        for record in records.iter().filter(|record| code.contains(record.as_str())) {
            let ends =
                |at: usize| !code[at..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
            let is = |pattern: &str| {
                let pattern = format!("{pattern}{record}");
                code.match_indices(&pattern).any(|(at, _)| ends(at + pattern.len()))
            };
            let is_compared = ["== &", "!= &", ".is(&", "contains(&&"].into_iter().any(is)
                || code.lines().any(|line| line.contains("ptr::eq") && line.contains(record))
                || ["==", "!="].iter().any(|sign| code.contains(&format!("{sign} {record}.name")));
            if is_compared {
                found.push(format!("{path}: {record}"));
            }
        }
    }
    found
}

/// The statics of the op table, apart from names too short to tell.
fn records(tree: &Tree) -> BTreeSet<String> {
    let in_table = tree.ending("rs").filter(|(path, _)| path.starts_with(TABLE));
    let lines = in_table.flat_map(|(_, source)| source.lines());
    let record = |line: &str| {
        let line = line.strip_prefix("pub static ").unwrap_or(line);
        let end =
            line.find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_')?;
        let (name, rest) = line.split_at(end);
        let is_record =
            rest.starts_with(": OpDef") || rest.starts_with(" = ") && rest.contains("->");
        (is_record && !name.is_empty()).then(|| name.to_owned())
    };
    lines.filter_map(record).collect()
}

#[test]
fn broken_copies_decide_by_ops() {
    let table = "NEG = neg(x) -> (y) {\n}\npub static CAT: OpDef = OpDef {\n};\n";
    let tree = Tree::of(&[("ir/src/ops/elementwise.rs", table)]);
    assert_eq!(records(&tree), ["CAT", "NEG"].map(str::to_owned).into());
    let with = |code: &str| tree.clone().with("passes/src/a.rs", code);
    let by_name = with("fn f(d: &D) -> bool { matches!(d.word(), \"neg\" | \"abs\") }");
    assert_eq!(quoting(&by_name), ["passes/src/a.rs: \"abs\"", "passes/src/a.rs: \"neg\""]);
    assert!(quoting(&with("// as \"neg\" does\nfn f() {}")).is_empty(), "a comment");
    assert!(quoting(&with("#[cfg(test)]\nmod tests { const A: &str = \"neg\"; }")).is_empty());
    assert_eq!(asking(&with("fn f(op: &O) -> &str { op.name().text() }")), ["passes/src/a.rs"]);
    for compared in ["x == &NEG", "std::ptr::eq(x, &CAT)", "op.is(&NEG)", "x.name == NEG.name"] {
        let found = comparing(&with(&format!("fn f() -> bool {{ {compared} }}")));
        assert_eq!(found.len(), 1, "{compared}");
    }
    let records = "fn f(r: &mut R) { r.apply(&NEG, &[x]); r.made(&NEGATIVE); }";
    assert!(comparing(&with(records)).is_empty(), "recording an op decides nothing");
}
