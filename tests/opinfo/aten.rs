//! Recorded calls that name exactly one ATen op, through the table of `tracecast-aten`.
//!
//! The names of Python's arguments are those of the schema but for a short list. A call whose
//! program is that of the other test is not run again.

use crate::arguments::{Arguments, Bound};
use crate::cases::{Arg, Case};
use crate::functions::cast_dtype;
use crate::report::Report;
use crate::run::{Ran, Runner, record_outputs, recorded};
use crate::{OURS, cases, names};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use tracecast_aten::{Argument, Draws, Operator, find};
use tracecast_ir::policy::{DeviceType, Region};
use tracecast_ir::{DType, Graph, Tracer, Var};

/// Names of arguments in Python and in schemas of ATen, where they differ.
const RENAMED: [(&str, &str); 17] = [
    ("input", "self"),
    ("training", "train"),
    ("size", "output_size"),
    ("scale_factor", "scale_factors"),
    ("split_size_or_sections", "split_size"),
    ("split_size_or_sections", "split_sizes"),
    ("mode", "interpolation_mode"),
    ("p", "ord"),
    ("b", "other"),
    ("a", "self"),
    ("A", "self"),
    ("input", "indices"),
    ("shape", "size"),
    ("sizes", "size"),
    ("other", "test_elements"),
    ("n", "n"),
    ("logits", "self"),
];

/// What came of the calls.
#[derive(Default)]
struct Counts {
    calls: usize,
    /// Whose arguments the schema has.
    through: usize,
    /// Whose program is the one of the other test.
    same: usize,
    /// With another program, and an answer that is as good.
    agree: usize,
    worse: Vec<String>,
    /// Overloads that the table lacks, and calls of other forms.
    lacking: BTreeMap<String, usize>,
    formless: BTreeMap<String, (usize, String)>,
}

#[test]
fn calls_of_one_aten_op_agree_through_the_table() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(OURS);
    let some = std::env::var("TRACECAST_OPINFO_OPS").ok();
    let all = Mutex::new(names(&folder).into_iter());
    let total = Mutex::new(Counts::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(family) = all.lock().unwrap().next() else { break };
                    let mut runner = Runner::new();
                    for case in cases::read(&folder.join(format!("{family}.jsonl.gz"))) {
                        let wanted = some
                            .as_ref()
                            .is_none_or(|some| some.split(',').any(|op| op == case.op));
                        if case.aten.is_some() && case.layer.is_none() && wanted {
                            note(&mut runner, &case, &total);
                        }
                    }
                }
            });
        }
    });
    let total = total.into_inner().unwrap();
    println!(
        "{} calls name one op of ATen, {} go through the table: {} are the same programs, {} others agree, {} are worse",
        total.calls,
        total.through,
        total.same,
        total.agree,
        total.worse.len()
    );
    total.formless.iter().for_each(|(op, (count, why))| println!("  {op}: {count}: {why}"));
    assert!(total.lacking.is_empty(), "the table lacks {:?}", total.lacking);
    assert!(total.worse.is_empty(), "{} are worse:\n{}", total.worse.len(), total.worse.join("\n"));
}

fn note(runner: &mut Runner, case: &Case, total: &Mutex<Counts>) {
    let name = case.aten.as_deref().unwrap_or_default();
    let name = if name.contains('.') { name.to_owned() } else { format!("{name}.default") };
    let Some(operator) = find(&name) else {
        total.lock().unwrap().calls += 1;
        *total.lock().unwrap().lacking.entry(name).or_default() += 1;
        return;
    };
    let through = through(case, &operator);
    let mut counts = total.lock().unwrap();
    counts.calls += 1;
    let through = match through {
        Ok(through) => through,
        Err(why) => {
            counts.formless.entry(case.op.clone()).or_insert((0, why)).0 += 1;
            return;
        }
    };
    counts.through += 1;
    let plain = recorded(case);
    let same = match (&through, &plain) {
        (Ok((a, _)), Ok((b, _))) => a.to_string() == b.to_string(),
        (Err(_), Err(Ran::Refused(_))) => true,
        _ => false,
    };
    if same {
        counts.same += 1;
        return;
    }
    drop(counts);
    let ran = match through {
        Ok((graph, count)) => runner.run_recorded(case, graph, count),
        Err(message) => Ran::Refused(message),
    };
    let mut report = Report::new(case.op.clone());
    report.note(case, ran);
    let mut before = Report::new(case.op.clone());
    before.note(case, runner.run(case));
    let mut counts = total.lock().unwrap();
    if report.is_as_good_as(&before) {
        counts.agree += 1;
    } else {
        counts.worse.push(format!("{} as {name}: {report}", case.id));
    }
}

/// The program of a call by the table, or why the tracer refused it.
fn through(case: &Case, operator: &Operator) -> Result<Result<(Graph, usize), String>, String> {
    let t = Tracer::new("case");
    let arguments = Arguments::new(&t, case);
    let given = given(&arguments, operator)?;
    let given: Vec<(Option<&str>, Argument<Var<'_>>)> =
        given.iter().map(|(name, argument)| (Some(name.as_str()), argument.clone())).collect();
    let bound = operator.bind(&given)?;
    let draw = || (t.constant(DType::I64, &[2], &[1.0, 2.0]), 0);
    let record = || operator.record_bound(&t, &bound, &Draws::from(&draw));
    let recorded = match case.autocast {
        None => record(),
        Some(low) => {
            t.in_region(&Region::default().with_device(DeviceType::Cpu, true, low), record)
        }
    };
    let recorded = match recorded {
        Ok(recorded) => recorded,
        Err(why) => return Ok(Err(why)),
    };
    let mut results = recorded.tensors();
    // Python returns the first of some, and running statistics are results here.
    let written =
        recorded.writes.iter().filter(|_| !operator.is_in_place()).map(|(_, value)| *value);
    results.truncate(case.out.len().saturating_sub(case.written.len()).max(1));
    if case.refusal.is_none() && !case.written.is_empty() {
        results.extend(written);
    }
    let count = record_outputs(&t, case, &results, &arguments.leaves)?;
    Ok(t.finish().map(|graph| (graph, count)).map_err(|error| error.to_string()))
}

/// The arguments by the names of the schema.
fn given<'t>(
    a: &Arguments<'_, 't>,
    operator: &Operator,
) -> Result<Vec<(String, Argument<Var<'t>>)>, String> {
    let schema = operator.schema();
    let has = |name: &str| schema.position(name).is_some();
    let mut all: Vec<(String, Argument<Var<'t>>)> = Vec::new();
    for (at, given) in a.list.iter().enumerate() {
        let name = given.name.map(str::to_owned);
        let renamed = |name: &str| {
            let to = RENAMED.iter().filter(|(from, _)| *from == name).map(|(_, to)| *to);
            to.filter(|to| has(to))
                .find(|to| all.iter().all(|(known, _)| known != to))
                .map(str::to_owned)
        };
        let own = |name: &String| has(name) && all.iter().all(|(known, _)| known != name);
        let placed = || schema.parameters.get(at).map(|parameter| parameter.name.to_owned());
        let name = match name {
            Some(name) if own(&name) => Some(name),
            Some(name) => renamed(&name),
            None => placed().filter(own),
        };
        let argument = argument(&given.is)?;
        match name {
            Some(name) => {
                let kind = schema.position(&name).map_or("", |at| schema.parameters[at].kind);
                all.push((name, in_kind(argument, kind)));
            }
            None if matches!(argument, Argument::None | Argument::Place) => {}
            None => return Err(format!("the schema has no argument for {:?}", given.name)),
        }
    }
    let to = cast_dtype(&a.case.op);
    all.extend(to.map(|dtype| ("dtype".to_owned(), Argument::DType(dtype))));
    Ok(all)
}

/// Words as the numbers that ATen has for them.
fn in_kind<T>(argument: Argument<T>, kind: &str) -> Argument<T> {
    const WORDS: [&[&str]; 3] = [
        &["none", "mean", "sum"],
        &["bilinear", "nearest", "bicubic"],
        &["zeros", "border", "reflection"],
    ];
    match &argument {
        // Python has it computed as the norm of a vector.
        Argument::Text(word) if kind == "Scalar" && word == "fro" => Argument::Int(2),
        Argument::Text(word) if kind == "int" => {
            let at = WORDS.iter().find_map(|words| words.iter().position(|known| known == word));
            at.map_or(argument, |at| Argument::Int(at as i64))
        }
        _ => argument,
    }
}

fn argument<'t>(bound: &Bound<'_, 't>) -> Result<Argument<Var<'t>>, String> {
    let list = |list: &[Bound<'_, 't>]| {
        Ok(Argument::List(list.iter().map(argument).collect::<Result<_, String>>()?))
    };
    match bound {
        Bound::Tensor(x) => Ok(Argument::Tensor(*x)),
        Bound::List(all) => list(all),
        Bound::Slice(_) => Err("a slice is no argument of ATen".to_owned()),
        Bound::Plain(arg) => plain(arg),
    }
}

fn plain<T>(arg: &Arg) -> Result<Argument<T>, String> {
    Ok(match arg {
        Arg::None => Argument::None,
        Arg::Bool(b) => Argument::Bool(*b),
        Arg::Int(n) => Argument::Int(*n),
        Arg::Float(v) => Argument::Float(*v),
        Arg::Text(text) => Argument::Text(text.clone()),
        Arg::DType(dtype) => Argument::DType(*dtype),
        Arg::List(list) | Arg::Tuple(list) => {
            Argument::List(list.iter().map(plain).collect::<Result<_, String>>()?)
        }
        Arg::Other => Argument::Place,
        Arg::Slice(_) | Arg::Ellipsis => return Err("is no argument of ATen".to_owned()),
        Arg::Tensor(_) => return Err("holds a tensor".to_owned()),
    })
}

/// The results of a call by the table.
fn call<'t>(t: &'t Tracer, name: &str, given: Vec<Argument<Var<'t>>>) -> Vec<Var<'t>> {
    let given: Vec<_> = given.into_iter().map(|argument| (None, argument)).collect();
    let draw = || (t.constant(DType::I64, &[2], &[1.0, 2.0]), 0);
    find(name).unwrap().record(t, &given, &Draws::from(&draw)).unwrap().tensors()
}

/// AOTAutograd saves the statistics of a norm for its backward. PyTorch 2.15 on the CPU has them in
/// the dtype of the weight.
#[test]
fn statistics_of_a_layer_norm_have_the_dtype_of_its_weight() {
    use DType::{BF16, F32};
    for (scale, statistics) in [(Some(F32), F32), (Some(BF16), BF16), (None, BF16)] {
        let t = Tracer::new("norm");
        let x = t.constant(BF16, &[2, 7], &[1.0; 14]);
        let some = |dtype: Option<DType>| {
            dtype.map_or(Argument::None, |d| Argument::Tensor(t.constant(d, &[7], &[1.0; 7])))
        };
        let shape = Argument::List(vec![Argument::Int(7)]);
        let forward = vec![
            Argument::Tensor(x),
            shape.clone(),
            some(scale),
            some(scale),
            Argument::Float(1e-5),
        ];
        let [y, mean, rstd] = call(&t, "native_layer_norm.default", forward)[..] else {
            panic!("three results")
        };
        assert_eq!([y, mean, rstd].map(|v| v.dtype()), [BF16, statistics, statistics]);
        let masks = Argument::List(vec![Argument::Bool(true); 3]);
        let backward = vec![
            Argument::Tensor(y),
            Argument::Tensor(x),
            shape,
            Argument::Tensor(mean),
            Argument::Tensor(rstd),
            some(scale),
            some(scale),
            masks,
        ];
        let gradients = call(&t, "native_layer_norm_backward.default", backward);
        assert_eq!(gradients[0].dtype(), BF16);
        assert_eq!(t.finish().map(|_| ()).map_err(|error| error.to_string()), Ok(()));
    }
}

/// As [`statistics_of_a_layer_norm_have_the_dtype_of_its_weight`], of a norm of groups.
#[test]
fn statistics_of_a_group_norm_have_the_dtype_of_its_weight() {
    use DType::{BF16, F32};
    for (scale, statistics) in [(Some(F32), F32), (Some(BF16), BF16), (None, BF16)] {
        let t = Tracer::new("norm");
        let x = t.constant(BF16, &[2, 6, 4], &[1.0; 48]);
        let scale = scale
            .map_or(Argument::None, |dtype| Argument::Tensor(t.constant(dtype, &[6], &[1.0; 6])));
        let sizes = [2, 6, 4, 3].map(Argument::Int);
        let mut forward = vec![Argument::Tensor(x), scale.clone(), scale.clone()];
        forward.extend(sizes.clone());
        forward.push(Argument::Float(1e-5));
        let [y, mean, rstd] = call(&t, "native_group_norm.default", forward)[..] else {
            panic!("three results")
        };
        assert_eq!([y, mean, rstd].map(|v| v.dtype()), [BF16, statistics, statistics]);
        let mut backward = [y, x, mean, rstd].map(Argument::Tensor).to_vec();
        backward.push(scale);
        backward.extend(sizes);
        backward.push(Argument::List(vec![Argument::Bool(true); 3]));
        let gradients = call(&t, "native_group_norm_backward.default", backward);
        assert_eq!(gradients[0].dtype(), BF16);
        assert_eq!(t.finish().map(|_| ()).map_err(|error| error.to_string()), Ok(()));
    }
}
