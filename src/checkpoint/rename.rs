//! [`Rename`]: names of a file under other names, by patterns with stars.

/// Names that fit a pattern become others: `*` stands for any run of characters without a dot, `**`
/// for any run, and the stars of the second pattern stand for what those of the first stood for, in
/// order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rename {
    from: Vec<Piece>,
    to: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    /// Any run without a dot, or any run.
    Star {
        dots: bool,
    },
}

impl Rename {
    /// # Errors
    /// If the patterns differ in their stars.
    pub(super) fn new(from: &str, to: &str) -> Result<Self, String> {
        let rename = Rename { from: pieces(from), to: pieces(to) };
        let stars = |pieces: &[Piece]| -> Vec<Piece> {
            pieces.iter().filter(|piece| !matches!(piece, Piece::Text(_))).cloned().collect()
        };
        if stars(&rename.from) != stars(&rename.to) {
            return Err(format!(
                "`{from}` and `{to}` have other stars: each stands for one of the other's"
            ));
        }
        Ok(rename)
    }

    /// The other way round.
    pub(super) fn reversed(&self) -> Self {
        Rename { from: self.to.clone(), to: self.from.clone() }
    }

    /// The new name; nothing if the old one does not fit.
    pub(super) fn apply(&self, name: &str) -> Option<String> {
        let mut stood = Vec::new();
        if !fits(&self.from, name, &mut stood) {
            return None;
        }
        let mut stood = stood.into_iter();
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Star { .. } => stood.next().unwrap_or_default().to_owned(),
        };
        Some(self.to.iter().map(piece).collect())
    }
}

fn pieces(pattern: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut rest = pattern;
    while let Some(at) = rest.find('*') {
        if at > 0 {
            pieces.push(Piece::Text(rest[..at].to_owned()));
        }
        let dots = rest[at..].starts_with("**");
        pieces.push(Piece::Star { dots });
        rest = &rest[at + 1 + usize::from(dots)..];
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
    pieces
}

/// Whether a name fits, and what each star stands for.
fn fits<'n>(pattern: &[Piece], name: &'n str, stood: &mut Vec<&'n str>) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((Piece::Text(text), rest)) => {
            name.strip_prefix(text.as_str()).is_some_and(|name| fits(rest, name, stood))
        }
        Some((Piece::Star { dots }, rest)) => {
            let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
            for end in ends {
                if !dots && name[..end].contains('.') {
                    return false;
                }
                stood.push(&name[..end]);
                if fits(rest, &name[end..], stood) {
                    return true;
                }
                stood.pop();
            }
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Rename;

    #[test]
    fn stars_stand_for_what_they_stood_for() {
        let cases = [
            (
                "h.*.attn.*",
                "layers.*.attention.*",
                "h.11.attn.bias",
                Some("layers.11.attention.bias"),
            ),
            ("**", "transformer.**", "wte.weight", Some("transformer.wte.weight")),
            ("transformer.**", "**", "wte.weight", None),
            ("a.*.b", "*", "a.x.y.b", None),
            ("**.gamma", "**.weight", "a.b.gamma", Some("a.b.weight")),
            ("x", "y", "x", Some("y")),
        ];
        for (from, to, name, expected) in cases {
            let rename = Rename::new(from, to).unwrap();
            let found = rename.apply(name);
            assert_eq!(found.as_deref(), expected, "{from} of {name}");
            if let Some(found) = found {
                assert_eq!(rename.reversed().apply(&found).as_deref(), Some(name));
            }
        }
        assert!(Rename::new("a.*", "b").is_err() && Rename::new("*", "**").is_err());
    }
}
