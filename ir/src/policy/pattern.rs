//! Patterns over names with dots: `encoder.*.norm` and `encoder.**`.
//!
//! A name is read once, with all the places of the pattern that it may have come to so far. So the
//! work is at most the length of the name times that of the pattern, however many stars there are.

/// True if all of `text` matches: `*` stands for any run of characters without a dot, `**` for any
/// run at all.
pub fn matches(pattern: &str, text: &str) -> bool {
    if !text.starts_with(before_stars(pattern)) {
        return false;
    }
    let mut places = Places::new(pattern);
    text.chars().for_each(|c| places.read(c));
    places.at_end()
}

/// True if `scope` or a module around it matches.
pub(super) fn matches_module(pattern: &str, scope: &str) -> bool {
    if !scope.starts_with(before_stars(pattern)) {
        return false;
    }
    let mut places = Places::new(pattern);
    for c in scope.chars() {
        if c == '.' && places.at_end() {
            return true;
        }
        places.read(c);
    }
    places.at_end()
}

/// What a name that matches begins with.
fn before_stars(pattern: &str) -> &str {
    pattern.split('*').next().unwrap_or(pattern)
}

/// The places of a pattern that what was read so far leads to.
struct Places<'p> {
    pattern: &'p str,
    /// Positions in bytes, each once and in order. A star is among them as long as it may go on; so
    /// is what follows it.
    reached: Vec<usize>,
    /// The places after the next character, kept for its memory.
    next: Vec<usize>,
}

impl<'p> Places<'p> {
    fn new(pattern: &'p str) -> Self {
        let mut places = Places { pattern, reached: Vec::new(), next: Vec::new() };
        places.reach(0);
        std::mem::swap(&mut places.reached, &mut places.next);
        places
    }

    /// Takes the next character of the name.
    fn read(&mut self, c: char) {
        self.next.clear();
        for i in 0..self.reached.len() {
            let at = self.reached[i];
            match Part::at(self.pattern, at) {
                Some(Part::Star) if c != '.' => self.reach(at),
                Some(Part::Stars) => self.reach(at),
                Some(Part::Letter(letter)) if letter == c => self.reach(at + c.len_utf8()),
                _ => {}
            }
        }
        std::mem::swap(&mut self.reached, &mut self.next);
    }

    /// Adds a place, and those behind the stars there, which may stand for nothing.
    fn reach(&mut self, mut at: usize) {
        loop {
            // Places come in order, and those behind the stars of a place are there if the place
            // is.
            if self.next.last().is_none_or(|last| *last < at) {
                self.next.push(at);
            }
            at += match Part::at(self.pattern, at) {
                Some(Part::Star) => 1,
                Some(Part::Stars) => 2,
                Some(Part::Letter(_)) | None => return,
            };
        }
    }

    /// True if the pattern ends where the name does.
    fn at_end(&self) -> bool {
        self.reached.last() == Some(&self.pattern.len())
    }
}

/// A part of a pattern.
enum Part {
    /// `*`.
    Star,
    /// `**`.
    Stars,
    /// Any other character, which stands for itself.
    Letter(char),
}

impl Part {
    /// The part that begins at a position; `None` at the end.
    fn at(pattern: &str, at: usize) -> Option<Part> {
        let rest = &pattern[at..];
        Some(match rest.chars().next()? {
            '*' if rest.starts_with("**") => Part::Stars,
            '*' => Part::Star,
            letter => Part::Letter(letter),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stop_at_dots_and_double_stars_do_not() {
        assert!(matches("a.b", "a.b") && !matches("a.b", "a.bc"));
        assert!(matches("a.*.c", "a.b.c") && !matches("a.*.c", "a.b.b.c"));
        assert!(matches("a.**.c", "a.b.b.c") && matches("**", ""));
        assert!(matches("*/softmax#*", "ü/softmax#0") && !matches("*/softmax", "a/softmax#0"));
        assert!(matches("***", "a.b") && matches("***", "") && matches("***.b", "a.b"));
        assert!(matches("a*", "a") && !matches("a*", "a.") && matches("a**", "a."));
    }

    #[test]
    fn a_module_pattern_covers_what_is_inside() {
        assert!(
            matches_module("encoder", "encoder.0.norm")
                && matches_module("encoder.*", "encoder.0.norm")
        );
        assert!(!matches_module("enc", "encoder.0") && !matches_module("norm", "encoder.0.norm"));
        assert!(matches_module("", "") && !matches_module("", "encoder"));
    }

    /// What a pattern means, tried out character by character: exponential in its stars.
    fn defined(pattern: &str, text: &str) -> bool {
        let Some(star) = pattern.find('*') else { return pattern == text };
        let Some(text) = text.strip_prefix(&pattern[..star]) else { return false };
        let is_any = pattern[star..].starts_with("**");
        let tail = &pattern[star + if is_any { 2 } else { 1 }..];
        let reach = if is_any { text.len() } else { text.find('.').unwrap_or(text.len()) };
        (0..=reach).any(|at| text.is_char_boundary(at) && defined(tail, &text[at..]))
    }

    #[test]
    fn patterns_mean_what_is_defined() {
        // Every pattern and every name of few characters from a small alphabet.
        let words = |alphabet: &[&str], longest: u32| -> Vec<String> {
            let count = alphabet.len();
            let word = |length: u32, mut number: usize| {
                let letter = |_| {
                    let letter = alphabet[number % count];
                    number /= count;
                    letter
                };
                (0..length).map(letter).collect::<String>()
            };
            let of = |length: u32| (0..count.pow(length)).map(move |number| (length, number));
            (0..=longest).flat_map(of).map(|(length, number)| word(length, number)).collect()
        };
        let names = words(&["a", ".", "é"], 4);
        for pattern in words(&["a", ".", "*", "é"], 5) {
            for name in &names {
                assert_eq!(
                    matches(&pattern, name),
                    defined(&pattern, name),
                    "{pattern:?} on {name:?}"
                );
                let mut around = name.match_indices('.').map(|(at, _)| at).chain([name.len()]);
                let inside = around.any(|end| defined(&pattern, &name[..end]));
                assert_eq!(matches_module(&pattern, name), inside, "{pattern:?} around {name:?}");
            }
        }
    }

    #[test]
    fn many_stars_take_time_in_proportion() {
        // With backtracking, none of these would come to an end.
        let name = vec!["layer"; 200].join(".");
        for star in ["**.", "*.**.", "**l", "**"] {
            assert!(!matches(&format!("{}norm", star.repeat(12)), &name), "{star}");
            assert!(!matches_module(&format!("{}norm", star.repeat(12)), &name), "{star}");
        }
        assert!(matches(&format!("{}layer", "**.".repeat(12)), &name));
        assert!(matches(&"*.".repeat(200).replace("*.*", "*.l*"), &(name + ".")));
    }
}
