//! The commands of filetests: each one function from a case to what it prints. `docs/ir.md`
//! describes the text and lists the commands.

use crate::{Case, TestFile};
use crate::{devices, values};
use std::fmt::Write;
use std::sync::Arc;
use tracecast_ir::kernel::{KernelLimits, Scalar};
use tracecast_ir::policy::{DeviceType, Policy, PolicySet, Region, Target};
use tracecast_ir::text::{DeviceKind, ParseOptions, Printer, parse_under, parse_with};
use tracecast_ir::{DType, Graph, Stage, Verified, verify};
use tracecast_passes::{Pass, PassOptions, Pipeline, Precision, standard};

/// What a file does with each of its cases.
pub(crate) type Command = fn(&TestFile, &Case) -> Result<String, String>;

/// The command of that name: one of those below, or a pass.
pub(crate) fn find(name: &str) -> Result<Command, String> {
    Ok(match name {
        "parse" => parse,
        "verify" => check,
        "pipeline" => pipeline,
        "eval" => eval,
        "run" => devices::run,
        "clif" => devices::clif,
        "plan" => devices::plan,
        "autocast" => autocast,
        "explain" => explain,
        _ if tracecast_passes::names().contains(&name) => pass,
        _ => {
            return Err(format!(
                "unknown command `{name}`: expected parse, verify, pipeline, explain, eval, run, plan, clif or the name of a pass"
            ));
        }
    })
}

/// `test parse [error] [show=full,scopes,regions] [explicit] [devices=npu:privateuse1:2,…]`: what
/// the parser recorded, which is to read back to the same; with `error`, why it recorded nothing.
/// Of `devices` each has a name, a type, and how many there are.
fn parse(file: &TestFile, case: &Case) -> Result<String, String> {
    file.knows(&["error", "show", "explicit", "devices"])?;
    let kinds = file.option("devices").into_iter().flat_map(|kinds| kinds.split(','));
    let kinds = kinds.map(kind).collect::<Result<Vec<_>, _>>()?;
    let here = ParseOptions { devices: kinds, ..options(file.flag("explicit")) };
    let parsed = parse_with(&case.text, &here);
    if file.flag("error") {
        return match parsed {
            Err(error) => Ok(format!("error: {error}\n")),
            Ok(graph) => Err(format!("expected an error, found\n{graph}")),
        };
    }
    let graph = parsed.map_err(|e| e.to_string())?;
    round_trip(&graph, file.flag("explicit"))?;
    let named = Printer::FULL.show_with(&graph, &here.devices).to_string();
    let again =
        parse_with(&named, &here).map_err(|e| format!("does not read back: {e}\n{named}"))?;
    if again.to_string() != graph.to_string() {
        return Err(format!("with names reads back as\n{again}and was\n{graph}"));
    }
    Ok(printer(file)?.show_with(&graph, &here.devices).to_string())
}

/// `npu:privateuse1:2`
fn kind(text: &str) -> Result<DeviceKind, String> {
    let bad = || format!("`devices` has NAME:TYPE:COUNT, found `{text}`");
    let [name, device_type, count] = text.split(':').collect::<Vec<_>>()[..] else {
        return Err(bad());
    };
    let device_type = device_type.parse().map_err(|_| bad())?;
    let count: u16 = count.parse().map_err(|_| bad())?;
    Ok(DeviceKind { name: name.to_owned(), device_type, ordinals: Some((0..count).collect()) })
}

/// `test verify [stage=traced|cast|core|fused]`: what parser or verifier refuse.
fn check(file: &TestFile, case: &Case) -> Result<String, String> {
    file.knows(&["stage"])?;
    let stage = match file.option("stage").unwrap_or("traced") {
        "traced" => Stage::Traced,
        "cast" => Stage::Cast,
        "core" => Stage::Core,
        "fused" => Stage::Fused,
        other => return Err(format!("no stage is named `{other}`")),
    };
    let graph = match parse_with(&case.text, &options(stage != Stage::Traced)) {
        Ok(graph) => graph,
        Err(error) => return Ok(format!("error: {error}\n")),
    };
    Ok(match verify(graph, stage) {
        Ok(verified) => format!("ok: {:?}, {} nodes\n", verified.stage(), verified.len()),
        Err(errors) => errors
            .0
            .iter()
            .fold(String::new(), |out, error| out + "error: " + &error.to_string() + "\n"),
    })
}

/// `test PASS [after=PASS,PASS] [no-fold] [no-forms] [optimised] [show=…] [error]`: the graph, read
/// as it is printed after other passes, behind this one; with `error`, why this one refuses it;
/// with `no-forms`, for a device that has code for none that there is a choice about; with
/// `limits=numbers`, for one that holds f32 and bf16 in memory, has no registers for f64, and takes
/// six operands.
fn pass(file: &TestFile, case: &Case) -> Result<String, String> {
    file.knows(&["after", "no-fold", "no-forms", "limits", "optimised", "show", "error"])?;
    let graph = parse_with(&case.text, &options(true)).map_err(|e| e.to_string())?;
    let graph = stage_of(graph)?;
    match run_passes(file, graph, Some(&file.command)) {
        Ok(_) if file.flag("error") => Err("expected an error, found none".to_owned()),
        Ok(graph) => print(file, graph),
        Err(error) if file.flag("error") => Ok(format!("{error}\n")),
        Err(error) => Err(error),
    }
}

/// `test autocast [device=cuda dtype=bf16] [show=…]`: the graph as traced, or as it would have been
/// traced in a region of that device, with its casts.
fn autocast(file: &TestFile, case: &Case) -> Result<String, String> {
    file.knows(&["device", "dtype", "show"])?;
    let traced = verify(traced(file, case, None)?, Stage::Traced).map_err(|e| e.to_string())?;
    print(file, run_passes(file, traced, Some("autocast"))?)
}

/// `test pipeline until=PASS [device=cuda dtype=bf16] [no-fold] [optimised] [show=…]`: the traced
/// graph behind the standard passes.
fn pipeline(file: &TestFile, case: &Case) -> Result<String, String> {
    file.knows(&["until", "device", "dtype", "no-fold", "limits", "optimised", "show"])?;
    let until = file.option("until").ok_or("expected `until=PASS`")?;
    let graph = up_to(file, until)?
        .run(traced(file, case, None)?, |_, _, _| ())
        .map_err(|e| e.to_string())?;
    print(file, graph)
}

/// `test explain [about=NODE] [device=cuda dtype=bf16] [strategy=strict-bf16] [rule=OP:POLICY]
/// [module=PATH:POLICY] [node=NAME:POLICY] [no-fold] [optimised] [warnings]`: why every op, or the
/// one asked about, has its precision, what became of the casts, and what is odd; with `warnings`
/// only that.
fn explain(file: &TestFile, case: &Case) -> Result<String, String> {
    file.knows(&[
        "about",
        "device",
        "dtype",
        "strategy",
        "rule",
        "module",
        "node",
        "no-fold",
        "optimised",
        "warnings",
    ])?;
    let policies = Arc::new(policies(file)?);
    let graph = traced_under(file, case, Some("text"), policies.clone())?;
    let options = PassOptions { policies: Some(policies), ..pipeline_options(file) };
    let explained =
        tracecast_passes::explain::explain(&graph, &options).map_err(|e| e.to_string())?;
    if file.flag("warnings") {
        let lines = explained.warnings.iter().map(|warning| format!("warning: {warning}\n"));
        let lines: String = lines.collect();
        return Ok(if lines.is_empty() { "no warnings\n".to_owned() } else { lines });
    }
    match file.option("about") {
        Some(node) => match explained.about(node) {
            Ok(about) => Ok(about.to_string()),
            Err(unknown) => Ok(format!("error: {unknown}\n")),
        },
        None => Ok(explained.to_string()),
    }
}

/// The standard policies, or those of a `strategy=bold-bf16`, with the rules `rule=gelu:fp32`,
/// `module=…` and `node=…` of a file.
fn policies(file: &TestFile) -> Result<PolicySet, String> {
    let mut set = match file.option("strategy") {
        None => PolicySet::standard(),
        Some(name) => {
            PolicySet::strategy(name).ok_or_else(|| format!("there is no strategy `{name}`"))?
        }
    };
    for option in &file.options {
        let Some((kind, rule)) = option.split_once('=') else { continue };
        let target: fn(String) -> Target = match kind {
            "rule" => Target::Op,
            "module" => Target::Module,
            "node" => Target::Node,
            _ => continue,
        };
        let (name, policy) = rule.rsplit_once(':').ok_or("expected `NAME:POLICY`")?;
        let policy = Policy::named(policy, "").map_err(|e| e.to_string())?;
        set.add_rule(target(name.to_owned()), None, policy);
    }
    Ok(set)
}

/// `test eval [until=PASS,PASS] [device=cuda dtype=bf16] [no-fold] [no-forms]`: the values that the
/// interpreter gives for the `; input` lines, for the traced graph or behind each of these passes,
/// which must not change a bit.
fn eval(file: &TestFile, case: &Case) -> Result<String, String> {
    file.knows(&["until", "device", "dtype", "no-fold", "no-forms"])?;
    let graph = traced(file, case, None)?;
    let mut graphs = Vec::new();
    for until in file.option("until").into_iter().flat_map(|u| u.split(',')) {
        let graph =
            up_to(file, until)?.run(graph.clone(), |_, _, _| ()).map_err(|e| e.to_string())?;
        graphs.push((until, graph.into_graph()));
    }
    if graphs.is_empty() {
        graphs.push(("trace", graph));
    }
    let mut out = String::new();
    for run in values::runs(case, &graphs[0].1)? {
        let mut said: Option<(&str, String)> = None;
        for (name, graph) in &graphs {
            let result = match tracecast_ir::eval::graph(graph, &run.inputs) {
                Ok(outputs) => values::show(&outputs.outputs, &outputs.updates),
                Err(error) => format!("error: {error}"),
            };
            match &said {
                Some((first, before)) if *before != result => {
                    return Err(format!("{first} gives {before}\n{name} gives {result}"));
                }
                Some(_) => {}
                None => said = Some((name, result)),
            }
        }
        let result = said.map(|(_, result)| result).unwrap_or_default();
        writeln!(out, "run: {} => {result}", run.text).map_err(|e| e.to_string())?;
    }
    Ok(out)
}

/// The graph of a case as user code would have traced it, in the region that `device` and `dtype`
/// open; its lines are those of a file of that name.
pub(crate) fn traced(file: &TestFile, case: &Case, name: Option<&str>) -> Result<Graph, String> {
    traced_under(file, case, name, PolicySet::standard().into())
}

fn traced_under(
    file: &TestFile,
    case: &Case,
    name: Option<&str>,
    policies: Arc<PolicySet>,
) -> Result<Graph, String> {
    let options = ParseOptions { file: name.map(str::to_owned), policies, ..options(false) };
    let Some(device) = file.option("device") else {
        return parse_with(&case.text, &options).map_err(|e| e.to_string());
    };
    let device: DeviceType =
        device.parse().map_err(|e: tracecast_ir::policy::PolicyError| e.to_string())?;
    let dtype = file.option("dtype").map(str::parse).transpose()?;
    let (region, warning) =
        Region::default().enter(device, dtype, true, None).map_err(|e| e.to_string())?;
    if let Some(warning) = warning {
        return Err(warning);
    }
    let file = parse_under(&case.text, &options, &region).map_err(|e| e.to_string())?;
    <[Graph; 1]>::try_from(file.graphs)
        .map(|[graph]| graph)
        .map_err(|_| "expected one graph".to_owned())
}

/// The furthest stage that the graph is in.
fn stage_of(graph: Graph) -> Result<Verified, String> {
    match verify(graph.clone(), Stage::Core) {
        Ok(verified) => Ok(verified),
        Err(_) => verify(graph, Stage::Cast).map_err(|e| e.to_string()),
    }
}

/// The passes of `after=`, then the one at hand, with the verifier behind each.
fn run_passes(
    file: &TestFile,
    mut graph: Verified,
    last: Option<&str>,
) -> Result<Verified, String> {
    let before = file.option("after").into_iter().flat_map(|names| names.split(','));
    for name in before.chain(last) {
        let pass = pass_named(file, name)?;
        let next = pass.run(&graph).map_err(|e| format!("{name}: {e}"))?;
        graph =
            verify(next, pass.ensures(graph.stage())).map_err(|e| format!("after {name}: {e}"))?;
    }
    Ok(graph)
}

fn pass_named(file: &TestFile, name: &str) -> Result<Box<dyn Pass>, String> {
    tracecast_passes::find(name, &pipeline_options(file))
        .ok_or_else(|| format!("no pass is named `{name}`"))
}

fn up_to(file: &TestFile, pass: &str) -> Result<Pipeline, String> {
    standard(&pipeline_options(file))
        .up_to(pass)
        .ok_or_else(|| format!("no pass is named `{pass}`"))
}

pub(crate) fn pipeline_options(file: &TestFile) -> PassOptions {
    let precision = if file.flag("optimised") { Precision::Optimised } else { Precision::Exact };
    let mut options =
        PassOptions { fold: !file.flag("no-fold"), precision, ..PassOptions::default() };
    if file.flag("no-forms") {
        options.forms.clear();
    }
    match file.option("limits") {
        Some("numbers") => {
            let dtypes: &[DType] = &[DType::F32, DType::BF16];
            let scalars: &[Scalar] = &[Scalar::F32, Scalar::I32, Scalar::I64, Scalar::Bool];
            let limits = KernelLimits { dtypes, scalars, most_operands: 6, ..KernelLimits::NONE };
            options.fusion.limits = limits;
        }
        Some(other) => panic!("`limits` knows numbers, found `{other}`"),
        None => {}
    }
    options
}

fn options(explicit: bool) -> ParseOptions {
    ParseOptions { policies: PolicySet::standard().into(), explicit, ..ParseOptions::default() }
}

/// Fails unless the text of a graph reads back to the same text.
fn round_trip(graph: &Graph, explicit: bool) -> Result<(), String> {
    let text = graph.to_string();
    let again = parse_with(&text, &options(explicit))
        .map_err(|e| format!("does not read back: {e}\n{text}"))?;
    if again.to_string() == text {
        Ok(())
    } else {
        Err(format!("reads back as\n{again}and was\n{text}"))
    }
}

fn print(file: &TestFile, graph: Verified) -> Result<String, String> {
    Ok(printer(file)?.print(&graph))
}

/// What `show=` asks for on top of what golden files have.
fn printer(file: &TestFile) -> Result<Printer, String> {
    let mut printer = Printer::GOLDEN;
    for part in file.option("show").into_iter().flat_map(|parts| parts.split(',')) {
        match part {
            "full" => printer = Printer::FULL,
            "regions" => printer.regions = true,
            "scopes" => printer.scopes = true,
            other => return Err(format!("`show` knows full, regions and scopes, found `{other}`")),
        }
    }
    Ok(printer)
}
