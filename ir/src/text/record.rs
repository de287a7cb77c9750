//! One graph of a text: each line is read whole and then recorded.

use super::cursor::{Cursor, Span, shorten};
use super::head::Head;
use super::lexer::{Kind, Token};
use super::options::Reading;
use super::{devices, literal, nearest};
use crate::op::{OpRef, OperandKind};
use crate::policy::{Region, Site};
use crate::tracer::DEEPEST;
use crate::{
    Args, Attrs, Graph, ParseError, Results, Role, Sizes, Source, TensorType, Tracer, Var,
};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};

/// Reads from `graph` to the closing brace.
pub(super) fn graph(
    cursor: &mut Cursor<'_>,
    reading: &Reading<'_>,
    head: &Head,
) -> Result<Graph, ParseError> {
    let keyword = cursor.take();
    cursor.expect('@', "and the graph's name")?;
    let (name, _) = cursor.take_name("the graph's name")?;
    let options = reading.options;
    let tracer = match options.explicit {
        true => Tracer::explicit(&name),
        false => Tracer::with_policies(&name, options.policies.clone()),
    };
    tracer.with_graph_mut(|graph| graph.sizes = head.sizes.clone());
    for region in head.regions.iter() {
        tracer.in_region(region, || ());
    }
    let mut recorder = Recorder {
        tracer: &tracer,
        reading,
        head,
        extra: options.ops.iter().map(|op| (op.name().text(), op)).collect(),
        values: HashMap::new(),
        outputs: HashSet::new(),
        depth: 0,
    };
    recorder.ports(cursor)?;
    recorder.lines(cursor, keyword)?;
    tracer
        .finish()
        .map_err(|error| cursor.fail(keyword, format!("{}: {}", error.op, error.message)))
}

/// A name of a value. A quoted name such as `%"0"` is another than the number `%0`.
type Key = (bool, String);

/// What a graph knows while its lines are read.
struct Recorder<'t, 'o> {
    tracer: &'t Tracer,
    reading: &'o Reading<'o>,
    head: &'o Head,
    extra: HashMap<&'static str, &'o OpRef>,
    values: HashMap<Key, Var<'t>>,
    outputs: HashSet<String>,
    /// How many checkpoint regions the lines lie in.
    depth: usize,
}

/// An op's line, not yet recorded.
struct Line<'t, 's> {
    names: SmallVec<[Token<'s>; 1]>,
    op: OpRef,
    op_at: Span,
    args: Args<'t>,
    attrs: Attrs,
    types: SmallVec<[(TensorType, Span); 1]>,
    place: Place,
}

/// Where a line was recorded.
struct Place {
    /// Of a constant.
    device: Option<Site>,
    region: Option<Region>,
    scope: Option<String>,
    source: Source,
}

impl<'t> Recorder<'t, '_> {
    /// `(%x: f32[8, 4] grad on cuda, %w: f32[4] param) {`
    fn ports(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
        cursor.expect('(', "before the ports")?;
        while !cursor.accept(')') {
            self.port(cursor)?;
            if !cursor.accept(',') && !cursor.at(')') {
                return Err(cursor.unexpected("`,` or `)` after a port"));
            }
        }
        cursor.expect('{', "before the lines of the graph")
    }

    /// `cuda`, or `cuda:1`
    fn site(&self, cursor: &mut Cursor<'_>) -> Result<Site, ParseError> {
        let name = cursor.take_kind(Kind::Word, "a device type")?;
        let options = self.reading.options;
        let kind = self.head.devices.device_type(name.text, options);
        let kind = kind.map_err(|error| cursor.fail(name, error.to_string()))?;
        let mut site = Site::from(kind);
        let mut at = name;
        if cursor.accept(':') {
            at = cursor.peek();
            site.ordinal = cursor.take_number("the number of a device")?;
        }
        devices::check(site, options).map_err(|message| cursor.fail(at, message))?;
        Ok(site)
    }

    fn port(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
        let token = cursor.take_kind(Kind::Value, "a port such as `%x: f32[2, 3]`")?;
        let key = self.key(cursor, token)?;
        cursor.expect(':', "and a type behind the port's name")?;
        let (ty, _) = literal::tensor_type(cursor, &self.head.sizes)?;
        let (mut role, mut grad, mut device) = (Role::Input, false, self.reading.options.device);
        loop {
            let word = cursor.peek();
            if cursor.accept_word("grad") {
                grad = true;
            } else if cursor.at_word("param") || cursor.at_word("state") {
                if role != Role::Input {
                    return Err(cursor.unexpected("one of `param` and `state`"));
                }
                role = if cursor.take().text == "param" { Role::Param } else { Role::State };
            } else if cursor.accept_word("on") {
                device = self.site(cursor)?;
            } else if word.kind == Kind::Word {
                return Err(cursor.unexpected("`param`, `state`, `grad` or `on` and a device type"));
            } else {
                break;
            }
        }
        if self.values.contains_key(&key) {
            return Err(cursor.fail(token, format!("two ports are named `{}`", shorten(&key.1))));
        }
        let source = self.source_of(token.line);
        let var = self.tracer.at(source, || self.tracer.port(&key.1, ty, role, grad, device));
        self.check(cursor, token.into())?;
        self.values.insert(key, var);
        Ok(())
    }

    fn lines(&mut self, cursor: &mut Cursor<'_>, keyword: Token<'_>) -> Result<(), ParseError> {
        while !cursor.accept('}') {
            if self.depth == 0 && cursor.accept_word("return") {
                self.returns(cursor)?;
            } else if self.depth == 0 && cursor.accept_word("update") {
                self.update(cursor)?;
            } else if cursor.at_word("checkpoint") {
                self.checkpoint(cursor)?;
            } else if cursor.peek().kind == Kind::Value {
                let line = self.line(cursor)?;
                self.record(cursor, line)?;
            } else if cursor.peek().kind == Kind::End {
                let message = format!(
                    "expected `}}`: the {} that begins on line {} is not closed",
                    keyword.text, keyword.line
                );
                return Err(cursor.fail(cursor.peek(), message));
            } else if self.depth > 0 {
                return Err(cursor.unexpected("`%name = op …`, `checkpoint` or `}`"));
            } else {
                return Err(
                    cursor.unexpected("`%name = op …`, `checkpoint`, `update`, `return` or `}`")
                );
            }
        }
        Ok(())
    }

    /// `checkpoint { … }`
    fn checkpoint(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
        let word = cursor.take();
        if self.depth == DEEPEST {
            let message = format!("{DEEPEST} checkpoint regions lie around this one: that is all");
            return Err(cursor.fail(word, message));
        }
        cursor.expect('{', "before the lines of a checkpoint region")?;
        self.depth += 1;
        let tracer = self.tracer;
        tracer.checkpoint(|| self.lines(cursor, word))?;
        self.depth -= 1;
        Ok(())
    }

    /// `return loss = %3, probs = %5`
    fn returns(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
        while matches!(cursor.peek().kind, Kind::Word | Kind::Text) {
            let (name, at) = cursor.take_name("the name of a result")?;
            cursor.expect('=', "and a value behind the name of a result")?;
            let value = self.value(cursor)?;
            if !self.outputs.insert(name.clone()) {
                return Err(cursor.fail(at, format!("`{}` is already a result", shorten(&name))));
            }
            self.tracer.output(&name, value);
            if !cursor.accept(',') {
                break;
            }
        }
        Ok(())
    }

    /// `update %w = %5`
    fn update(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
        let at = cursor.peek().into();
        let state = self.value(cursor)?;
        cursor.expect('=', "and the next value")?;
        let next = self.value(cursor)?;
        self.tracer.update(state, next);
        self.check(cursor, at)
    }

    /// `%0, %1 = layer_norm %x, none, [%a, %b] {eps = 1e-5} : f32[8], f32[] @#1 in "encoder" at
    /// "main.rs:3:7"`
    fn line<'s>(&self, cursor: &mut Cursor<'s>) -> Result<Line<'t, 's>, ParseError> {
        let mut names = SmallVec::from_elem(cursor.take(), 1);
        while cursor.accept(',') {
            names.push(cursor.take_kind(Kind::Value, "the name of another result")?);
        }
        cursor.expect('=', "and an op")?;
        let line = cursor.peek().line;
        let (name, op_at) = cursor.take_name("the name of an op")?;
        let op = self.op(&name).map_err(|message| cursor.fail(op_at, message))?;
        let args = self.args(cursor, &op)?;
        let attrs =
            if cursor.at('{') { attrs(cursor, &op, &self.head.sizes)? } else { Attrs::new() };
        cursor.expect(':', "and the type of the result")?;
        let mut types = SmallVec::from_elem(literal::tensor_type(cursor, &self.head.sizes)?, 1);
        while cursor.accept(',') {
            types.push(literal::tensor_type(cursor, &self.head.sizes)?);
        }
        let place = self.place(cursor, &op, line)?;
        Ok(Line { names, op, op_at, args, attrs, types, place })
    }

    fn op(&self, name: &str) -> Result<OpRef, String> {
        if let Some(op) = self.extra.get(name) {
            return Ok((*op).clone());
        }
        crate::ops::find(name).map(OpRef::Static).ok_or_else(|| {
            let known =
                crate::ops::all().map(|op| op.name.text()).chain(self.extra.keys().copied());
            format!("unknown op `{}`{}", shorten(name), nearest::did_you_mean(name, known))
        })
    }

    fn args(&self, cursor: &mut Cursor<'_>, op: &OpRef) -> Result<Args<'t>, ParseError> {
        let mut args = Args::new();
        let operands = op.def().schema.operands;
        while !(cursor.at('{') || cursor.at(':')) {
            if !args.groups.is_empty() && !cursor.accept(',') {
                return Err(cursor.unexpected("`,`, `{` or `:` after an operand"));
            }
            let at = cursor.peek();
            let is_list =
                operands.get(args.groups.len()).map(|o| (o.name, o.kind == OperandKind::List));
            match is_list {
                Some((name, true)) if !cursor.at('[') => {
                    return Err(
                        cursor.unexpected(&format!("the values of operand `{name}` in brackets"))
                    );
                }
                Some((name, false)) if cursor.at('[') => {
                    return Err(cursor.fail(
                        at,
                        format!("operand `{name}` of `{}` is one value, not a list", op.name()),
                    ));
                }
                _ => {}
            }
            if cursor.at('[') {
                args.push(self.list(cursor)?);
            } else if cursor.accept_word("none") {
                args.push(None);
            } else {
                args.push([self.value(cursor)?]);
            }
            if args.vars.len() > usize::from(u16::MAX) {
                return Err(cursor.fail(at, format!("an op takes at most {} values", u16::MAX)));
            }
        }
        for missing in operands.iter().skip(args.groups.len()) {
            if missing.kind == OperandKind::Optional {
                args.push(None);
            }
        }
        Ok(args)
    }

    /// `[%a, %b]`
    fn list(&self, cursor: &mut Cursor<'_>) -> Result<Vec<Var<'t>>, ParseError> {
        let open = cursor.take();
        let mut vars = Vec::new();
        while !cursor.accept(']') {
            vars.push(self.value(cursor)?);
            if !cursor.accept(',') && !cursor.at(']') {
                return Err(cursor.unexpected("`,` or `]` after a value of the list"));
            }
        }
        if vars.len() > usize::from(u16::MAX) {
            return Err(cursor.fail(open, format!("an op takes at most {} values", u16::MAX)));
        }
        Ok(vars)
    }

    /// A value that a port or an earlier line has named.
    fn value(&self, cursor: &mut Cursor<'_>) -> Result<Var<'t>, ParseError> {
        let token = cursor.take_kind(Kind::Value, "a value such as `%0`")?;
        let key = self.key(cursor, token)?;
        self.values.get(&key).copied().ok_or_else(|| {
            let known: Vec<String> =
                self.values.keys().map(|(_, name)| format!("%{name}")).collect();
            let known = known.iter().map(String::as_str).filter(|_| !is_number(&key));
            let hint = nearest::did_you_mean(token.text, known);
            cursor.fail(
                token,
                format!("`{}` is not defined before this line{hint}", shorten(token.text)),
            )
        })
    }

    fn key<'s>(&self, cursor: &Cursor<'s>, token: Token<'s>) -> Result<Key, ParseError> {
        if !token.text.starts_with("%\"") {
            return Ok((false, token.text[1..].to_owned()));
        }
        let name = cursor.unescape(token)?;
        Ok((!name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'), name))
    }

    /// `on cuda @#1 in "encoder" at "main.rs:3:7"`, each of them optional.
    fn place(&self, cursor: &mut Cursor<'_>, op: &OpRef, line: usize) -> Result<Place, ParseError> {
        let source = self.source_of(line);
        let mut place = Place { device: None, region: None, scope: None, source };
        let at = cursor.peek();
        if cursor.accept_word("on") {
            if !op.def().schema.operands.is_empty() {
                let name = op.name();
                let message = format!(
                    "the results of `{name}` live where its operands do; `on` is for what has none"
                );
                return Err(cursor.fail(at, message));
            }
            place.device = Some(self.site(cursor)?);
        }
        if cursor.accept('@') {
            cursor.expect('#', "and the number of a region")?;
            let at = cursor.peek();
            let number: u32 = cursor.take_number("the number of a region")?;
            let region = self.head.regions.get(number);
            let region =
                region.ok_or_else(|| cursor.fail(at, format!("there is no region #{number}")))?;
            place.region = Some(region).filter(|_| number != 0);
        }
        if cursor.accept_word("in") {
            place.scope = Some(cursor.take_text("a module path in quotes")?);
        }
        if cursor.accept_word("at") {
            place.source = Source::Text(cursor.take_text("a source line in quotes")?.into());
        }
        Ok(place)
    }

    /// The source of a line that does not tell its own.
    fn source_of(&self, line: usize) -> Source {
        match &self.reading.options.file {
            Some(file) => Source::Text(format!("{file}:{line}").into()),
            None => Source::Unknown,
        }
    }

    fn record(&mut self, cursor: &Cursor<'_>, line: Line<'t, '_>) -> Result<(), ParseError> {
        let tracer = self.tracer;
        let Line { names, op, op_at, args, attrs, types, place } = line;
        let name = op.name();
        let apply = || match place.device {
            Some(device) => tracer.on_device(device, || tracer.apply(op, args, attrs)),
            None => tracer.apply(op, args, attrs),
        };
        let apply = || tracer.at(place.source, apply);
        let scoped = || match &place.scope {
            Some(path) => tracer.scope_path(path, apply),
            None => apply(),
        };
        let results: Results<'t> = match place.region.as_ref().or(self.reading.ambient) {
            Some(region) => tracer.in_region(region, scoped),
            None => scoped(),
        };
        if results.iter().any(|v| v.is_poison()) {
            self.check(cursor, op_at)?;
        }
        if results.len() != names.len() || results.len() != types.len() {
            let message = format!(
                "`{name}` has {} results, found {} names and {} types",
                results.len(),
                names.len(),
                types.len()
            );
            return Err(cursor.fail(op_at, message));
        }
        for ((token, (ty, at)), var) in names.into_iter().zip(types).zip(results) {
            if var.ty() != ty && self.reading.ambient.is_none() {
                return Err(cursor.fail(
                    at,
                    format!("expected {}, the type that `{name}` gives, found {ty}", var.ty()),
                ));
            }
            let key = self.key(cursor, token)?;
            if !var.is_poison() && !is_number(&key) {
                tracer.with_graph_mut(|graph| graph.written.push((var.id(), key.1.clone())));
            }
            if self.values.insert(key, var).is_some() {
                return Err(
                    cursor.fail(token, format!("there is a `{}` already", shorten(token.text)))
                );
            }
        }
        Ok(())
    }

    /// What the tracer refused, at its place in the text.
    fn check(&self, cursor: &Cursor<'_>, at: Span) -> Result<(), ParseError> {
        match self.tracer.error() {
            Some(error) => Err(cursor.fail(at, format!("{}: {}", error.op, error.message))),
            None => Ok(()),
        }
    }
}

/// True for `%3`, by which printed text calls a result.
fn is_number((_, name): &Key) -> bool {
    name.bytes().all(|b| b.is_ascii_digit())
}

/// `{eps = 1e-5, shape = [2, 3]}`
fn attrs(cursor: &mut Cursor<'_>, op: &OpRef, sizes: &Sizes) -> Result<Attrs, ParseError> {
    cursor.expect('{', "before the attributes")?;
    let mut attrs = Attrs::new();
    let known = op.def().schema.attrs;
    while !cursor.accept('}') {
        let (name, at) = cursor.take_name("the name of an attribute")?;
        let Some(def) = known.iter().find(|a| a.name == name) else {
            let names: Vec<_> = known.iter().map(|a| format!("`{}`", a.name)).collect();
            let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(cursor.fail(
                at,
                format!("`{}` has no attribute `{}`: it has {has}", op.name(), shorten(&name)),
            ));
        };
        if attrs.get(def.name).is_some() {
            return Err(cursor.fail(at, format!("attribute `{name}` is given twice")));
        }
        cursor.expect('=', "and a value behind the attribute's name")?;
        attrs.set(def.name, literal::attr(cursor, sizes)?);
        if !cursor.accept(',') && !cursor.at('}') {
            return Err(cursor.unexpected("`,` or `}` after an attribute"));
        }
    }
    Ok(attrs)
}
