//! Choices without effect: regions in which nothing lives, rules that decide nothing.

use super::warning::{Warning, WarningKind};
use std::collections::{BTreeSet, HashSet};
use tracecast_ir::policy::{Decision, DeviceType, PolicySet, Rule, RuleId, Target};
use tracecast_ir::text::{Names, did_you_mean};
use tracecast_ir::{Graph, Matched, NodeId};

pub(super) fn look(traced: &Graph, policies: &PolicySet) -> Vec<Warning> {
    if traced.regions().len() == 1 && policies.rules().next().is_none() {
        return Vec::new();
    }
    let decisions = traced.decisions(policies);
    let mut found = regions(traced, &decisions);
    found.extend(idle_rules(traced, policies, &decisions));
    found
}

/// The most idle rules that are listed one by one.
const TOLD: usize = 100;

/// Rules that speak of nothing, of nothing inside a region, or only where a stronger rule decides.
fn idle_rules(graph: &Graph, policies: &PolicySet, decisions: &[Option<Decision>]) -> Vec<Warning> {
    let deciding: HashSet<&RuleId> = decisions.iter().flatten().map(|d| &d.rule).collect();
    let matched = graph.matched_by(policies);
    // A device states its rules for all programs.
    let is_idle = |rule: &Rule| {
        !matches!(rule.target, Target::DeviceOp(_)) && !deciding.contains(&rule.rule_id())
    };
    let mut idle = policies.rules().zip(&matched).filter(|(rule, _)| is_idle(rule));
    let told = idle.by_ref().take(TOLD);
    let mut found: Vec<Warning> =
        told.map(|(rule, matched)| idle_rule(graph, rule, matched, decisions)).collect();
    let more = idle.count();
    if more > 0 {
        let message = format!("{more} more rules decide nothing in this program");
        let advice = "correct or remove the first ones, and look again";
        found.push(Warning::new(WarningKind::IdleRule, message, advice));
    }
    found
}

/// Regions that are on, and in which every op that policies see lives elsewhere.
fn regions(graph: &Graph, decisions: &[Option<Decision>]) -> Vec<Warning> {
    let mut found = Vec::new();
    let devices = graph.devices();
    for (number, region) in graph.regions().iter().enumerate().filter(|(_, r)| !r.is_off()) {
        let inside = |id: &NodeId| {
            graph.node(*id).region as usize == number && decisions[id.index()].is_some()
        };
        let nodes: Vec<NodeId> = graph.nodes().filter(inside).collect();
        let idle = |id: &NodeId| {
            decisions[id.index()].as_ref().is_some_and(|d| d.rule == RuleId::ELSEWHERE)
        };
        if nodes.is_empty() || !nodes.iter().all(idle) {
            continue;
        }
        let on: Vec<_> = DeviceType::ALL.into_iter().filter(|d| region.is_enabled(*d)).collect();
        let there: BTreeSet<_> =
            nodes.iter().flat_map(|id| graph.operand_devices(&devices, *id)).collect();
        let names = |devices: &mut dyn Iterator<Item = DeviceType>| {
            devices.map(DeviceType::name).collect::<Vec<_>>().join(" and ")
        };
        let (on, there) = (names(&mut on.into_iter()), names(&mut there.into_iter()));
        let count = nodes.len();
        let message = format!(
            "region #{number} is on for {on}, but {} in it {} on {there}: nothing is cast",
            if count == 1 { "the op".to_owned() } else { format!("all {count} ops") },
            if count == 1 { "is" } else { "are" },
        );
        let advice = format!(
            "open it for {there}, or say of the inputs and parameters that they are on {on}"
        );
        found.push(Warning::new(WarningKind::IdleRegion, message, advice));
    }
    found
}

/// What is to be said of a rule that decides nothing.
fn idle_rule(
    graph: &Graph,
    rule: &Rule,
    matched: &Matched,
    decisions: &[Option<Decision>],
) -> Warning {
    let Matched { here: matched, elsewhere } = matched;
    let Some(first) = matched.first() else {
        if let Some(idle) = on_another_device(graph, rule, elsewhere) {
            return idle;
        }
        let message = format!(
            "rule {} (`{rule}`) matches no op of this program{}",
            rule.id,
            near(graph, &rule.target)
        );
        let advice = "correct its name or remove it";
        return Warning::new(WarningKind::IdleRule, message, advice);
    };
    let asked = |id: &NodeId| {
        decisions[id.index()]
            .as_ref()
            .filter(|d| d.rule != RuleId::OFF && d.rule != RuleId::ELSEWHERE)
    };
    let (message, advice) = match matched.iter().find_map(asked) {
        None => (
            format!(
                "rule {} (`{rule}`) matches {}, in no region that is on for its device",
                rule.id,
                several(&Names::new(graph).node(*first).to_string(), matched.len())
            ),
            "rules decide inside regions only",
        ),
        Some(stronger) => (
            format!(
                "rule {} (`{rule}`) decides nothing: where it matches, `{}` is stronger",
                rule.id, stronger.rule
            ),
            "a rule about a node wins over one about a module, that over one about an op, and of two the later one",
        ),
    };
    Warning::new(WarningKind::IdleRule, message, advice)
}

/// What a rule for one device type says of ops whose operands all live on others.
fn on_another_device(graph: &Graph, rule: &Rule, elsewhere: &[NodeId]) -> Option<Warning> {
    let device = rule.device?;
    let message = format!(
        "rule {} (`{rule}`) matches {}, of whose operands none is on {device}",
        rule.id,
        several(&Names::new(graph).node(*elsewhere.first()?).to_string(), elsewhere.len())
    );
    let advice = format!("say of the inputs and parameters that they are on {device}");
    Some(Warning::new(WarningKind::IdleRule, message, advice))
}

fn several(first: &str, count: usize) -> String {
    if count == 1 { first.to_owned() } else { format!("{first} and {} more", count - 1) }
}

/// Names of the program that are close to what a rule says.
fn near(graph: &Graph, target: &Target) -> String {
    let nodes = graph.nodes().map(|id| graph.node(id));
    let known: BTreeSet<String> = match target {
        Target::DeviceOp(_) | Target::Op(_) => nodes.map(|n| n.op.name().to_string()).collect(),
        Target::Module(_) => nodes.map(|n| n.scope.to_string()).collect(),
        Target::Node(_) => graph.names().into_iter().collect(),
    };
    did_you_mean(target.text(), known.iter().map(String::as_str))
}
