//! [`Printer`]: graphs as text, whole or as golden files want them.

use super::kernel::KernelText;
use super::options::{DeviceKind, VERSION};
use crate::graph::names::{Name, Names};
use crate::kernel::Kernel;
use crate::kernel::scalar_text::commas;
use crate::op::OperandKind;
use crate::policy::{DeviceType, Site};
use crate::{Attr, Graph, Node, NodeId, Port, Role};
use std::collections::HashMap;
use std::fmt::{self, Display, Formatter, Write};

/// What of a graph is printed. `Display` of a graph prints all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Printer {
    /// The line `tracecast 1`.
    pub header: bool,
    /// The regions, and the region of each line.
    pub regions: bool,
    /// The module path of each line.
    pub scopes: bool,
    /// The source line of each line.
    pub sources: bool,
    /// The kernels of a fused graph behind it, each once.
    pub kernels: bool,
}

impl Printer {
    /// Everything: reads back to a graph that prints the same.
    pub const FULL: Printer =
        Printer { header: true, regions: true, scopes: true, sources: true, kernels: true };
    /// Graph and kernels, without where lines come from: what golden files hold.
    pub const GOLDEN: Printer =
        Printer { header: false, regions: false, scopes: false, sources: false, kernels: true };

    /// The text of a graph.
    pub fn print(&self, graph: &Graph) -> String {
        self.show(graph).to_string()
    }

    /// Something that displays the graph.
    pub fn show<'a>(&self, graph: &'a Graph) -> impl Display + use<'a> {
        Shown { printer: *self, graph, devices: &[] }
    }

    /// The same with devices from outside by these names, and a line at the head that says what
    /// type each has: where it has another, the text means the same device.
    pub fn show_with<'a>(
        &self,
        graph: &'a Graph,
        devices: &'a [DeviceKind],
    ) -> impl Display + use<'a> {
        Shown { printer: *self, graph, devices }
    }
}

impl Display for Graph {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Printer::FULL.show(self).fmt(f)
    }
}

fn indent(f: &mut Formatter<'_>, depth: usize) -> fmt::Result {
    (0..depth).try_for_each(|_| f.write_str("  "))
}

/// Closes the open checkpoint regions that a line lies outside of, and opens those it lies in.
fn enter(f: &mut Formatter<'_>, open: &mut Vec<u32>, own: Vec<u32>) -> fmt::Result {
    let common = open.iter().zip(&own).take_while(|(a, b)| a == b).count();
    for depth in (common..open.len()).rev() {
        indent(f, 1 + depth)?;
        f.write_str("}\n")?;
    }
    for depth in common..own.len() {
        indent(f, 1 + depth)?;
        f.write_str("checkpoint {\n")?;
    }
    *open = own;
    Ok(())
}

struct Shown<'a> {
    printer: Printer,
    graph: &'a Graph,
    devices: &'a [DeviceKind],
}

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Shown { printer, graph, .. } = self;
        if printer.header {
            writeln!(f, "tracecast {VERSION}\n")?;
        }
        self.head(f)?;
        if printer.regions && graph.regions().len() > 1 {
            for (number, region) in graph.regions().iter().enumerate().skip(1) {
                writeln!(f, "region #{number} = {}", region.named(&|kind| self.name(kind)))?;
            }
            f.write_char('\n')?;
        }
        if !graph.sizes().is_empty() {
            self.sizes(f)?;
        }
        let names = Names::new(graph);
        write!(f, "graph @{}(", Name(graph.name()))?;
        commas(f, graph.ports(), |f, port| self.port(f, port))?;
        f.write_str(") {\n")?;
        let mut open = Vec::new();
        for id in graph.nodes().filter(|id| !names.is_port(*id)) {
            let mut own: Vec<u32> = graph.checkpoints_of(id).collect();
            own.reverse();
            enter(f, &mut open, own)?;
            self.line(f, &names, id, 1 + open.len())?;
        }
        enter(f, &mut open, Vec::new())?;
        for (port, value) in graph.updates() {
            writeln!(
                f,
                "  update %{} = {}",
                Name(&graph.ports()[*port].name),
                names.value(*value)
            )?;
        }
        if !graph.outputs().is_empty() {
            f.write_str("  return ")?;
            commas(f, graph.outputs(), |f, (name, value)| {
                write!(f, "{} = {}", Name(name), names.value(*value))
            })?;
            f.write_char('\n')?;
        }
        f.write_str("}\n")?;
        if printer.kernels { self.kernels(f) } else { Ok(()) }
    }
}

impl<'a> Shown<'a> {
    /// What a device type is called.
    fn name(&self, kind: DeviceType) -> &'a str {
        let known = self.devices.iter().find(|known| known.device_type == kind);
        known.filter(|_| kind.is_outside()).map_or(kind.name(), |known| &known.name)
    }

    /// The names of devices from outside that the graph has to do with.
    fn head(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let constants = self.graph.nodes().filter_map(|id| self.graph.node(id).device);
        let sites: Vec<Site> =
            self.graph.ports().iter().map(|port| port.device).chain(constants).collect();
        let mut is_first = true;
        for kind in DeviceType::OUTSIDE {
            let in_region = || self.graph.regions().iter().any(|region| region.speaks_of(kind));
            let is_used =
                sites.iter().any(|site| site.kind == kind) || self.printer.regions && in_region();
            if is_used && self.name(kind) != kind.name() {
                writeln!(f, "device {} = {kind}", self.name(kind))?;
                is_first = false;
            }
        }
        if is_first { Ok(()) } else { f.write_char('\n') }
    }

    fn port(&self, f: &mut Formatter<'_>, port: &Port) -> fmt::Result {
        write!(f, "%{}: {}", Name(&port.name), port.ty)?;
        f.write_str(match port.role {
            Role::Input => "",
            Role::Param => " param",
            Role::State => " state",
        })?;
        if port.grad {
            f.write_str(" grad")?;
        }
        if port.device != Site::default() {
            write!(f, " on {}", port.device.named(self.name(port.device.kind)))?;
        }
        Ok(())
    }

    fn sizes(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for size in self.graph.sizes().names() {
            write!(f, "size {size}")?;
            match self.graph.sizes().line(size.name).filter(|_| self.printer.sources) {
                Some(line) => writeln!(f, " at {line:?}")?,
                None => f.write_char('\n')?,
            }
        }
        for guard in self.graph.sizes().guards() {
            match self.printer.sources {
                true => writeln!(f, "guard {guard}")?,
                false => writeln!(f, "guard {} of {:?}", guard.claim, guard.op)?,
            }
        }
        f.write_char('\n')
    }

    fn line(
        &self,
        f: &mut Formatter<'_>,
        names: &Names<'_>,
        id: NodeId,
        depth: usize,
    ) -> fmt::Result {
        let node = self.graph.node(id);
        indent(f, depth)?;
        commas(f, names.results(id), |f, name| write!(f, "{name}"))?;
        write!(f, " = {}", Name(node.op.name().text()))?;
        self.operands(f, names, id, node)?;
        if !node.attrs.is_empty() {
            write!(f, " {}", node.attrs)?;
        }
        f.write_str(" : ")?;
        commas(f, &node.results, |f, ty| write!(f, "{ty}"))?;
        if let Some(device) = node.device {
            write!(f, " on {}", device.named(self.name(device.kind)))?;
        }
        if self.printer.regions && node.region != 0 {
            write!(f, " @#{}", node.region)?;
        }
        if self.printer.scopes && !node.scope.is_empty() {
            write!(f, " in {:?}", &*node.scope)?;
        }
        let source = node.source.to_string();
        if self.printer.sources && !source.is_empty() {
            write!(f, " at {source:?}")?;
        }
        f.write_char('\n')
    }

    /// The operands as the schema groups them.
    fn operands(
        &self,
        f: &mut Formatter<'_>,
        names: &Names<'_>,
        id: NodeId,
        node: &Node,
    ) -> fmt::Result {
        let args = self.graph.args(id);
        let schema = node.op.def().schema.operands;
        let mut rest = &args[..];
        for (i, &count) in node.groups.iter().enumerate() {
            f.write_str(if i > 0 { ", " } else { " " })?;
            let (values, behind) = rest.split_at(usize::from(count).min(rest.len()));
            rest = behind;
            let values = values.iter().map(|v| names.value(*v));
            match schema.get(i).map(|o| o.kind) {
                Some(OperandKind::List) => {
                    f.write_char('[')?;
                    commas(f, values, |f, v| write!(f, "{v}"))?;
                    f.write_char(']')?;
                }
                _ if count == 0 => f.write_str("none")?,
                _ => commas(f, values, |f, v| write!(f, "{v}"))?,
            }
        }
        Ok(())
    }

    fn kernels(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut seen: HashMap<&str, Vec<&Kernel>> = HashMap::new();
        for id in self.graph.nodes() {
            let Some(Attr::Kernel(kernel)) = self.graph.node(id).attrs.get("kernel") else {
                continue;
            };
            let same_name = seen.entry(&kernel.name).or_default();
            if !same_name.contains(&&**kernel) {
                same_name.push(kernel);
                write!(f, "\n{}", KernelText { kernel, sources: self.printer.sources })?;
            }
        }
        Ok(())
    }
}
