//! Sizes as sympy writes them, such as `2*s17` or `Max(1, s0 - 3)`, as [`Size`]s and claims about
//! them.

use tracecast_ir::{Claim, Size};

/// Parses a size.
///
/// # Errors
/// If it is no size, or made of what sizes have no form for.
pub fn size(text: &str) -> Result<Size, String> {
    let mut parser = Parser::new(text);
    let size = parser.sum()?;
    parser.end()?;
    if size.is_out_of_range() {
        return Err(format!("`{text}` is too large for a size"));
    }
    Ok(size)
}

/// Parses a relation of sizes, such as `s0 >= 2`, `Eq(Mod(s0, 4), 0)` or `Ne(s0, 1)`; the claims
/// that hold with it.
///
/// # Errors
/// As [`size`].
pub fn claim(text: &str) -> Result<Claim, String> {
    let mut parser = Parser::new(text);
    let claim = parser.relation()?;
    parser.end()?;
    Ok(claim)
}

/// Makes the claim that two sizes stand in a relation.
type Relation = fn(Size, Size) -> Claim;

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
    depth: usize,
}

/// How deep brackets may lie in each other.
const DEEPEST: usize = 64;

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Parser { text, rest: text.trim_start(), depth: 0 }
    }

    fn wrong<T>(&self, expected: &str) -> Result<T, String> {
        Err(format!("`{}` is no size: expected {expected} at `{}`", self.text, self.rest))
    }

    fn end(&self) -> Result<(), String> {
        if self.rest.is_empty() { Ok(()) } else { self.wrong("its end") }
    }

    fn eat(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn need(&mut self, token: &str) -> Result<(), String> {
        if self.eat(token) { Ok(()) } else { self.wrong(&format!("`{token}`")) }
    }

    fn relation(&mut self) -> Result<Claim, String> {
        if self.eat("Eq(") {
            let (a, b) = self.pair()?;
            return Ok(a.equals(b));
        }
        if self.eat("Ge(") {
            let (a, b) = self.pair()?;
            return Ok(a.at_least(b));
        }
        if self.eat("Le(") {
            let (a, b) = self.pair()?;
            return Ok(b.at_least(a));
        }
        let a = self.sum()?;
        let relations: [(&str, Relation); 5] = [
            (">=", |a, b| a.at_least(b)),
            ("<=", |a, b| b.at_least(a)),
            ("==", |a, b| a.equals(b)),
            (">", |a, b| a.at_least(b + 1)),
            ("<", |a, b| b.at_least(a + 1)),
        ];
        for (token, claim) in relations {
            if self.eat(token) {
                return Ok(claim(a, self.sum()?));
            }
        }
        self.wrong("a relation")
    }

    fn pair(&mut self) -> Result<(Size, Size), String> {
        let a = self.sum()?;
        self.need(",")?;
        let b = self.sum()?;
        self.need(")")?;
        Ok((a, b))
    }

    fn sum(&mut self) -> Result<Size, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return self.wrong("fewer brackets");
        }
        let mut sum = if self.eat("-") { -self.product()? } else { self.product()? };
        loop {
            if self.eat("+") {
                sum += self.product()?;
            } else if self.eat("-") {
                sum -= self.product()?;
            } else {
                self.depth -= 1;
                return Ok(sum);
            }
        }
    }

    fn product(&mut self) -> Result<Size, String> {
        let mut product = self.power()?;
        loop {
            if self.eat("//") {
                product = floor(product, self.power()?, self.text)?;
            } else if self.rest.starts_with("**") {
                return self.wrong("a product");
            } else if self.eat("*") {
                product *= self.power()?;
            } else if self.eat("/") {
                product = floor(product, self.power()?, self.text)?;
            } else if self.eat("%") {
                product = modulo(product, self.power()?, self.text)?;
            } else {
                return Ok(product);
            }
        }
    }

    fn power(&mut self) -> Result<Size, String> {
        let base = self.atom()?;
        if !self.eat("**") {
            return Ok(base);
        }
        let exponent = self.atom()?.number().filter(|n| (1..=8).contains(n));
        let Some(exponent) = exponent else { return self.wrong("a small exponent") };
        Ok((0..exponent).map(|_| base).product())
    }

    fn atom(&mut self) -> Result<Size, String> {
        if self.eat("(") {
            let size = self.sum()?;
            self.need(")")?;
            return Ok(size);
        }
        let digits =
            self.rest.len() - self.rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if digits > 0 {
            let (number, rest) = self.rest.split_at(digits);
            self.rest = rest.trim_start();
            return number
                .parse::<i64>()
                .map(Size::from)
                .or_else(|_| self.wrong("a smaller number"));
        }
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let length = self.rest.len() - self.rest.trim_start_matches(is_name).len();
        let (name, rest) = self.rest.split_at(length);
        if name.is_empty() {
            return self.wrong("a number or a name");
        }
        self.rest = rest.trim_start();
        if !self.eat("(") {
            return Ok(Size::named(name));
        }
        self.call(name)
    }

    fn call(&mut self, name: &str) -> Result<Size, String> {
        if name == "Symbol" {
            self.need("'")?;
            let Some((name, rest)) = self.rest.split_once('\'') else { return self.wrong("`'`") };
            let Some((_, rest)) = rest.split_once(')') else { return self.wrong("`)`") };
            self.rest = rest.trim_start();
            return Ok(Size::named(name));
        }
        let first = self.sum()?;
        let mut others = Vec::new();
        while self.eat(",") {
            others.push(self.sum()?);
        }
        self.need(")")?;
        match (name, &others[..]) {
            ("FloorDiv" | "CleanDiv" | "IntTrueDiv", [by]) => floor(first, *by, self.text),
            ("CeilToInt" | "FloorToInt" | "floor" | "Identity" | "Integer", []) => Ok(first),
            ("Mul", others) => Ok(others.iter().fold(first, |product, other| product * *other)),
            ("Add", others) => Ok(others.iter().fold(first, |sum, other| sum + *other)),
            ("CeilDiv", [by]) => floor(first + (*by - 1), *by, self.text),
            ("Mod" | "PythonMod", [by]) => modulo(first, *by, self.text),
            ("Max" | "Min", _) => extreme(name == "Max", first, &others, self.text),
            _ => Err(format!("`{}`: sizes have no form for `{name}`", self.text)),
        }
    }
}

fn floor(size: Size, by: Size, text: &str) -> Result<Size, String> {
    match by.number() {
        Some(0) => Err(format!("`{text}` divides by zero")),
        _ => Ok(size / by),
    }
}

fn modulo(size: Size, by: Size, text: &str) -> Result<Size, String> {
    Ok(size - by * floor(size, by, text)?)
}

/// Of numbers, and of sizes that are the same; others would be another size for other values.
fn extreme(largest: bool, first: Size, others: &[Size], text: &str) -> Result<Size, String> {
    let all: Option<Vec<i64>> = [first].iter().chain(others).map(|size| size.number()).collect();
    if let Some(all) = all {
        let found = if largest { all.into_iter().max() } else { all.into_iter().min() };
        return Ok(found.map_or(first, Size::from));
    }
    // A size is at least one where PyTorch compares it with one.
    let named: Vec<Size> =
        [first].iter().chain(others).copied().filter(|size| size.has_names()).collect();
    let numbers = [first].into_iter().chain(others.iter().copied()).filter_map(Size::number);
    match (&named[..], largest, numbers.max()) {
        ([one], true, Some(0 | 1)) => Ok(*one),
        _ => Err(format!("`{text}` is one size or another, which depends on the run")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sympys_text_is_read() {
        let s = Size::named("s17");
        for (text, expected) in [
            ("12", Size::from(12)),
            ("s17", s),
            ("Symbol('s17', positive=True, integer=True)", s),
            ("2*s17 + 1", s * 2 + 1),
            ("(s17//2)", s / 2),
            ("FloorDiv(s17 - 1, 2) + 1", (s - 1) / 2 + 1),
            ("Max(1, s17)", s),
            ("Mod(s17, 4)", s - (s / 4) * 4),
            ("s17**2", s * s),
            ("-s17 + 5", Size::from(5) - s),
            ("Mul(Integer(4), Symbol('s17', positive=True, integer=True))", s * 4),
            ("Add(Integer(-1), s17)", s - 1),
        ] {
            assert_eq!(size(text).unwrap(), expected, "{text}");
        }
        assert_eq!(claim("s17 >= 2").unwrap(), s.at_least(2));
        assert_eq!(claim("Eq(s17, 8)").unwrap(), s.equals(8));
        for text in
            ["", "s17 +", "f(s17)", "1/0", "2**s17", "((((", "s17 s18", "99999999999999999999"]
        {
            assert!(size(text).is_err(), "{text}");
        }
        let deep = "(".repeat(10_000);
        assert!(size(&deep).is_err());
    }
}
