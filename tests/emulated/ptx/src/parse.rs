//! Reads the text of a module.
//!
//! ```text
//! text ──► tokens ──► directives: functions, parameters, registers ──► instructions by the parts of their names
//! ```
//! What is not known is refused by its line, and so is a modifier that would change what an instruction does.

use std::{collections::HashMap, fmt};

use crate::program::{
    Address, Binary, Change, Comparison, Function, Instruction, Operand, Order, Parameter, Program,
    Register, Scope, Special, Type, Work,
};

/// Why a text is no module, and where.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Malformed {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong.
    pub why: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

type Parsed<T> = Result<T, Malformed>;

#[derive(Clone, Debug, PartialEq)]
enum Token {
    /// With the dots within: `ld.global.u64`, `%tid.x`, `.reg`.
    Word(String),
    Number(u64),
    Sign(char),
}

/// A module's functions.
pub(crate) fn program(text: &str) -> Parsed<Program> {
    let tokens = tokens(text)?;
    let mut reader = Reader {
        tokens: &tokens,
        at: 0,
    };
    let mut found: Vec<Function> = Vec::new();
    let mut calls = Vec::new();
    while let Some(word) = reader.next_word()? {
        match word.as_str() {
            ".version" => drop(reader.take()?),
            ".target" => {
                reader.take()?;
                while reader.passes(',') {
                    reader.take()?;
                }
            }
            ".address_size" => match reader.take()? {
                Token::Number(64) => {}
                _ => return Err(reader.wrong("addresses of other than 64 bits")),
            },
            ".visible" | ".weak" => {}
            ".extern" => {
                reader.expect_word(".func")?;
                while !reader.passes(';') {
                    reader.take()?;
                }
            }
            ".func" | ".entry" => {
                let is_entry = word == ".entry";
                if let Some(function) = function(&mut reader, is_entry, found.len(), &mut calls)? {
                    if found.iter().any(|other| other.name == function.name) {
                        return Err(
                            reader.wrong(&format!("{} is there a second time", function.name))
                        );
                    }
                    found.push(function);
                }
            }
            other => return Err(reader.wrong(&format!("{other} is not known here"))),
        }
    }
    link(&mut found, calls)?;
    Ok(Program { functions: found })
}

/// A call whose function may come later.
struct Call {
    line: usize,
    from: usize,
    at: usize,
    name: String,
}

fn link(functions: &mut [Function], calls: Vec<Call>) -> Parsed<()> {
    for call in calls {
        let wrong = |why: &str| Malformed {
            line: call.line,
            why: format!("{}: {why}", call.name),
        };
        let callee = functions
            .iter()
            .position(|function| function.name == call.name)
            .ok_or_else(|| wrong("no such function in this text"))?;
        let counts = (
            functions[callee].returns.len(),
            functions[callee].parameters.len(),
        );
        let Some(Instruction {
            work:
                Work::Call {
                    function,
                    returns,
                    arguments,
                },
            ..
        }) = functions[call.from].code.get_mut(call.at)
        else {
            return Err(wrong("no call"));
        };
        if (returns.len(), arguments.len()) != counts {
            return Err(wrong("called with other parameters than it has"));
        }
        *function = callee;
    }
    Ok(())
}

fn tokens(text: &str) -> Parsed<Vec<(usize, Token)>> {
    let mut found = Vec::new();
    let mut line = 1;
    let mut rest = text;
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.');
    while let Some(first) = rest.chars().next() {
        let taken = if first == '\n' {
            line += 1;
            1
        } else if first.is_whitespace() || first == '\0' {
            first.len_utf8()
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            let end = rest.find("*/").map_or(rest.len(), |end| end + 2);
            line += rest[..end].matches('\n').count();
            end
        } else if first.is_ascii_digit() {
            let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
            let number = number(&rest[..end]).ok_or_else(|| Malformed {
                line,
                why: format!("{} is no number", &rest[..end]),
            })?;
            found.push((line, number));
            end
        } else if is_part(first) {
            let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
            found.push((line, Token::Word(rest[..end].to_owned())));
            end
        } else {
            found.push((line, Token::Sign(first)));
            first.len_utf8()
        };
        rest = &rest[taken..];
    }
    Ok(found)
}

/// Also a version, which is of no use here.
fn number(text: &str) -> Option<Token> {
    if text.contains('.') {
        return Some(Token::Word(text.to_owned()));
    }
    let digits = text.trim_end_matches('U');
    let value = match digits.get(..2) {
        Some("0x" | "0X") => u64::from_str_radix(&digits[2..], 16),
        Some("0f" | "0F") => u64::from_str_radix(&digits[2..], 16),
        Some("0b" | "0B") => u64::from_str_radix(&digits[2..], 2),
        _ => digits.parse(),
    };
    value.ok().map(Token::Number)
}

struct Reader<'a> {
    tokens: &'a [(usize, Token)],
    at: usize,
}

impl Reader<'_> {
    fn line(&self) -> usize {
        let last = self.tokens.get(self.at.saturating_sub(1));
        last.map_or(1, |(line, _)| *line)
    }

    fn wrong(&self, why: &str) -> Malformed {
        Malformed {
            line: self.line(),
            why: why.to_owned(),
        }
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    fn take(&mut self) -> Parsed<Token> {
        let token = self.peek().cloned();
        self.at += 1;
        token.ok_or_else(|| self.wrong("the text ends too early"))
    }

    /// A word, or the end of the text.
    fn next_word(&mut self) -> Parsed<Option<String>> {
        match self.peek() {
            None => Ok(None),
            Some(_) => self.word().map(Some),
        }
    }

    fn word(&mut self) -> Parsed<String> {
        match self.take()? {
            Token::Word(word) => Ok(word),
            other => Err(self.wrong(&format!("{other:?} instead of a word"))),
        }
    }

    fn number(&mut self) -> Parsed<u64> {
        match self.take()? {
            Token::Number(number) => Ok(number),
            other => Err(self.wrong(&format!("{other:?} instead of a number"))),
        }
    }

    fn expect_word(&mut self, word: &str) -> Parsed<()> {
        match self.word()? == word {
            true => Ok(()),
            false => Err(self.wrong(&format!("{word} is missing"))),
        }
    }

    fn expect(&mut self, sign: char) -> Parsed<()> {
        match self.passes(sign) {
            true => Ok(()),
            false => {
                self.at += 1;
                Err(self.wrong(&format!("'{sign}' is missing")))
            }
        }
    }

    /// Whether the next token is the sign, which is passed then.
    fn passes(&mut self, sign: char) -> bool {
        let is_it = self.peek() == Some(&Token::Sign(sign));
        self.at += usize::from(is_it);
        is_it
    }
}

/// What a name stands for within a function.
#[derive(Clone, Copy)]
enum Name {
    Register(Register),
    Parameter(usize),
}

/// A function that is being read.
struct Body<'a> {
    index: usize,
    registers: Vec<u8>,
    room: usize,
    /// Inner scopes hide outer ones.
    scopes: Vec<HashMap<String, Name>>,
    code: Vec<Instruction>,
    labels: HashMap<String, usize>,
    /// Branches whose labels may come later.
    branches: Vec<(usize, usize, String)>,
    calls: &'a mut Vec<Call>,
}

fn function(
    reader: &mut Reader<'_>,
    is_entry: bool,
    index: usize,
    calls: &mut Vec<Call>,
) -> Parsed<Option<Function>> {
    let mut body = Body {
        index,
        registers: Vec::new(),
        room: 0,
        scopes: vec![HashMap::new()],
        code: Vec::new(),
        labels: HashMap::new(),
        branches: Vec::new(),
        calls,
    };
    let mut returns = Vec::new();
    if !is_entry && reader.peek() == Some(&Token::Sign('(')) {
        returns = body.parameters(reader)?;
    }
    let name = reader.word()?;
    let parameters = match reader.peek() {
        Some(Token::Sign('(')) => body.parameters(reader)?,
        _ => Vec::new(),
    };
    // A declaration.
    if reader.passes(';') {
        return Ok(None);
    }
    while let Some(Token::Word(word)) = reader.peek() {
        match word.as_str() {
            ".maxntid" | ".reqntid" | ".minnctapersm" | ".maxnreg" => {
                reader.take()?;
                reader.number()?;
                while reader.passes(',') {
                    reader.number()?;
                }
            }
            ".noreturn" => drop(reader.take()?),
            other => return Err(reader.wrong(&format!("{other} is not known here"))),
        }
    }
    reader.expect('{')?;
    body.block(reader)?;
    for (at, line, label) in std::mem::take(&mut body.branches) {
        let why = || format!("there is no label {label}");
        let target = body
            .labels
            .get(&label)
            .ok_or_else(|| Malformed { line, why: why() })?;
        body.code[at].work = Work::Branch(*target);
    }
    body.code.push(Instruction {
        guard: None,
        work: Work::Return,
    });
    Ok(Some(Function {
        name,
        is_entry,
        parameters,
        returns,
        room: body.room,
        registers: body.registers,
        code: body.code,
    }))
}

impl Body<'_> {
    /// A list of parameters in parentheses.
    fn parameters(&mut self, reader: &mut Reader<'_>) -> Parsed<Vec<Parameter>> {
        reader.expect('(')?;
        let mut found = Vec::new();
        while !reader.passes(')') {
            reader.expect_word(".param")?;
            found.push(self.parameter(reader)?);
            reader.passes(',');
        }
        Ok(found)
    }

    /// The rest of a declaration of a parameter.
    fn parameter(&mut self, reader: &mut Reader<'_>) -> Parsed<Parameter> {
        let mut align = None;
        let mut word = reader.word()?;
        if word == ".align" {
            align = Some(reader.number()? as usize);
            word = reader.word()?;
        }
        let of = type_of(word.trim_start_matches('.'))
            .ok_or_else(|| reader.wrong(&format!("{word} is no type of a parameter")))?;
        let mut word = reader.word()?;
        if word == ".ptr" {
            // Promises about what it points to.
            while word.starts_with('.') {
                if word == ".align" {
                    reader.number()?;
                }
                word = reader.word()?;
            }
        }
        let mut size = of.bytes() as usize;
        if reader.passes('[') {
            size *= reader.number()? as usize;
            reader.expect(']')?;
        }
        let place = self
            .room
            .next_multiple_of(align.unwrap_or_else(|| of.bytes() as usize).max(1));
        self.room = place + size;
        self.name(word, Name::Parameter(place));
        Ok(Parameter { place, size })
    }

    fn name(&mut self, word: String, name: Name) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(word, name);
        }
    }

    fn find(&self, word: &str) -> Option<Name> {
        let mut scopes = self.scopes.iter().rev();
        scopes.find_map(|scope| scope.get(word).copied())
    }

    /// Up to the brace that ends it.
    fn block(&mut self, reader: &mut Reader<'_>) -> Parsed<()> {
        self.scopes.push(HashMap::new());
        while !reader.passes('}') {
            if reader.passes('{') {
                self.block(reader)?;
                continue;
            }
            let guard = match reader.passes('@') {
                true => {
                    let is_true = !reader.passes('!');
                    Some((self.register(reader)?, is_true))
                }
                false => None,
            };
            let word = reader.word()?;
            if guard.is_none() && reader.passes(':') {
                let line = reader.line();
                if self.labels.insert(word.clone(), self.code.len()).is_some() {
                    let why = format!("the label {word} is there a second time");
                    return Err(Malformed { line, why });
                }
                continue;
            }
            match word.as_str() {
                ".reg" => self.declare(reader)?,
                ".param" => {
                    self.parameter(reader)?;
                }
                ".loc" => {
                    for _ in 0..3 {
                        reader.number()?;
                    }
                    continue;
                }
                _ => {
                    let work = self.instruction(reader, &word)?;
                    self.code.push(Instruction { guard, work });
                }
            }
            reader.expect(';')?;
        }
        self.scopes.pop();
        Ok(())
    }

    /// Registers: `.u64 %rd<5>`, or names.
    fn declare(&mut self, reader: &mut Reader<'_>) -> Parsed<()> {
        let word = reader.word()?;
        let bits = match word.as_str() {
            ".pred" => 1,
            _ => {
                let of = type_of(word.trim_start_matches('.'));
                of.ok_or_else(|| reader.wrong(&format!("{word} is no type of a register")))?
                    .bits
            }
        };
        loop {
            let name = reader.word()?;
            let count = match reader.passes('<') {
                true => {
                    let count = reader.number()?;
                    reader.expect('>')?;
                    Some(count)
                }
                false => None,
            };
            for number in 0..count.unwrap_or(1) {
                let register = Register::try_from(self.registers.len())
                    .map_err(|_| reader.wrong("too many registers"))?;
                self.registers.push(bits);
                let word = match count {
                    Some(_) => format!("{name}{number}"),
                    None => name.clone(),
                };
                self.name(word, Name::Register(register));
            }
            if !reader.passes(',') {
                return Ok(());
            }
        }
    }

    fn register(&self, reader: &mut Reader<'_>) -> Parsed<Register> {
        let word = reader.word()?;
        match self.find(&word) {
            Some(Name::Register(register)) => Ok(register),
            _ => Err(reader.wrong(&format!("{word} is no register"))),
        }
    }

    fn operand(&self, reader: &mut Reader<'_>) -> Parsed<Operand> {
        match reader.take()? {
            Token::Number(number) => Ok(Operand::Number(number)),
            Token::Sign('-') => Ok(Operand::Number(reader.number()?.wrapping_neg())),
            Token::Word(word) => match (special(&word), self.find(&word)) {
                (Some(special), _) => Ok(Operand::Special(special)),
                (None, Some(Name::Register(register))) => Ok(Operand::Register(register)),
                _ => Err(reader.wrong(&format!("{word} is no value"))),
            },
            other => Err(reader.wrong(&format!("{other:?} is no value"))),
        }
    }

    /// After a comma.
    fn next(&self, reader: &mut Reader<'_>) -> Parsed<Operand> {
        reader.expect(',')?;
        self.operand(reader)
    }

    fn list<T>(
        reader: &mut Reader<'_>,
        one: impl Fn(&mut Reader<'_>) -> Parsed<T>,
    ) -> Parsed<Vec<T>> {
        if !reader.passes('{') {
            return Ok(vec![one(reader)?]);
        }
        let mut found = vec![one(reader)?];
        while reader.passes(',') {
            found.push(one(reader)?);
        }
        reader.expect('}')?;
        Ok(found)
    }

    fn registers(&self, reader: &mut Reader<'_>) -> Parsed<Vec<Register>> {
        Self::list(reader, |reader| self.register(reader))
    }

    fn operands(&self, reader: &mut Reader<'_>) -> Parsed<Vec<Operand>> {
        Self::list(reader, |reader| self.operand(reader))
    }

    fn offset(reader: &mut Reader<'_>) -> Parsed<i64> {
        let negative = match (reader.passes('+'), reader.passes('-')) {
            (false, false) => return Ok(0),
            (_, negative) => negative,
        };
        let number = reader.number()?.cast_signed();
        Ok(if negative {
            number.wrapping_neg()
        } else {
            number
        })
    }

    fn address(&self, reader: &mut Reader<'_>) -> Parsed<Address> {
        reader.expect('[')?;
        let base = self.operand(reader)?;
        let offset = Self::offset(reader)?;
        reader.expect(']')?;
        Ok(Address { base, offset })
    }

    /// The place of a parameter and an offset in it.
    fn place(&self, reader: &mut Reader<'_>) -> Parsed<usize> {
        reader.expect('[')?;
        let word = reader.word()?;
        let Some(Name::Parameter(place)) = self.find(&word) else {
            return Err(reader.wrong(&format!("{word} is no parameter")));
        };
        let offset = Self::offset(reader)?;
        reader.expect(']')?;
        place
            .checked_add_signed(offset as isize)
            .ok_or_else(|| reader.wrong("before the parameters"))
    }

    /// Names of parameters in parentheses.
    fn places(&self, reader: &mut Reader<'_>) -> Parsed<Vec<usize>> {
        let mut found = Vec::new();
        reader.expect('(')?;
        while !reader.passes(')') {
            let word = reader.word()?;
            match self.find(&word) {
                Some(Name::Parameter(place)) => found.push(place),
                _ => return Err(reader.wrong(&format!("{word} is no parameter"))),
            }
            reader.passes(',');
        }
        Ok(found)
    }

    fn instruction(&mut self, reader: &mut Reader<'_>, word: &str) -> Parsed<Work> {
        let mut parts = word.split('.');
        let name = parts.next().unwrap_or_default();
        let mut parts = Parts {
            word,
            left: parts.collect(),
        };
        let is_float = word.ends_with(".f32") || word.ends_with(".f64");
        if is_float && !matches!(name, "ld" | "st" | "mov" | "selp") {
            return Err(reader.wrong(&format!("{word}: no floating point here")));
        }
        let work = match name {
            "ld" | "ldu" if parts.has("param") => {
                let (of, count) = parts.typed(reader)?;
                let to = self.registers(reader)?;
                reader.expect(',')?;
                let place = self.place(reader)?;
                parts.counted(reader, to.len(), count)?;
                Work::LoadParameter { to, of, place }
            }
            "st" if parts.has("param") => {
                let (of, count) = parts.typed(reader)?;
                let place = self.place(reader)?;
                reader.expect(',')?;
                let from = self.operands(reader)?;
                parts.counted(reader, from.len(), count)?;
                Work::StoreParameter { from, of, place }
            }
            "ld" => {
                let (order, scope) = parts.ordered(reader, Order::Weak)?;
                let (of, count) = parts.typed(reader)?;
                if order.releases() {
                    return Err(reader.wrong("a load that releases"));
                }
                let to = self.registers(reader)?;
                reader.expect(',')?;
                let at = self.address(reader)?;
                parts.counted(reader, to.len(), count)?;
                Work::Load {
                    to,
                    of,
                    at,
                    order,
                    scope,
                }
            }
            "st" => {
                let (order, scope) = parts.ordered(reader, Order::Weak)?;
                let (of, count) = parts.typed(reader)?;
                if order.acquires() {
                    return Err(reader.wrong("a store that acquires"));
                }
                let at = self.address(reader)?;
                reader.expect(',')?;
                let from = self.operands(reader)?;
                parts.counted(reader, from.len(), count)?;
                Work::Store {
                    from,
                    of,
                    at,
                    order,
                    scope,
                }
            }
            "atom" | "red" => {
                let (order, scope) = parts.ordered(reader, Order::Relaxed)?;
                let change = parts
                    .pick(&[
                        ("add", Change::Add),
                        ("and", Change::And),
                        ("or", Change::Or),
                        ("xor", Change::Xor),
                        ("min", Change::Min),
                        ("max", Change::Max),
                        ("inc", Change::Increment),
                        ("dec", Change::Decrement),
                        ("exch", Change::Exchange),
                        ("cas", Change::CompareExchange),
                    ])
                    .ok_or_else(|| reader.wrong(&format!("{word} changes nothing")))?;
                let (of, _) = parts.typed(reader)?;
                if !matches!(of.bits, 32 | 64) {
                    return Err(reader.wrong("an atomic of other than 32 or 64 bits"));
                }
                let to = match name {
                    "atom" => {
                        let to = self.register(reader)?;
                        reader.expect(',')?;
                        Some(to)
                    }
                    _ => None,
                };
                let at = self.address(reader)?;
                let first = self.next(reader)?;
                let second = match change {
                    Change::CompareExchange => self.next(reader)?,
                    _ => Operand::Number(0),
                };
                Work::Atomic {
                    to,
                    change,
                    of,
                    at,
                    values: [first, second],
                    order,
                    scope,
                }
            }
            "fence" => {
                // Both are as strong here.
                parts.has("sc");
                parts.has("acq_rel");
                let scope = parts.scope().ok_or_else(|| reader.wrong("of no scope"))?;
                Work::Fence(scope)
            }
            "membar" => {
                let scope = parts.pick(&[
                    ("cta", Scope::Block),
                    ("gl", Scope::Device),
                    ("sys", Scope::System),
                ]);
                Work::Fence(scope.ok_or_else(|| reader.wrong("of no scope"))?)
            }
            "bar" | "barrier" => {
                parts.has("cta");
                parts.has("aligned");
                if !parts.has("sync") {
                    return Err(reader.wrong(&format!("{word} is not known here")));
                }
                match self.operand(reader)? {
                    Operand::Number(0) => Work::Barrier,
                    _ => return Err(reader.wrong("a barrier other than 0")),
                }
            }
            "mov" => self.moved(reader, &mut parts)?,
            "cvta" => {
                parts.has("to");
                if !parts.has("global") {
                    return Err(reader.wrong("addresses of another space"));
                }
                parts.typed(reader)?;
                let to = self.register(reader)?;
                let from = self.next(reader)?;
                Work::Move { to, from }
            }
            "mad" => {
                let wide = parts.has("wide");
                if !wide && !parts.has("lo") {
                    return Err(reader.wrong(&format!("{word} is not known here")));
                }
                let (of, _) = parts.typed(reader)?;
                let to = self.register(reader)?;
                let values = [self.next(reader)?, self.next(reader)?, self.next(reader)?];
                Work::MultiplyAdd {
                    of,
                    wide,
                    to,
                    values,
                }
            }
            "not" | "neg" => {
                let (of, _) = parts.typed(reader)?;
                let to = self.register(reader)?;
                let value = self.next(reader)?;
                match name {
                    "not" => Work::Not { of, to, value },
                    _ => Work::Negate { of, to, value },
                }
            }
            "cvt" => {
                let into = parts.take_type();
                let from = parts.take_type();
                let (Some(into), Some(from)) = (into, from) else {
                    return Err(reader.wrong(&format!("{word} is not known here")));
                };
                let to = self.register(reader)?;
                let value = self.next(reader)?;
                Work::Convert {
                    from,
                    into,
                    to,
                    value,
                }
            }
            "setp" => self.compare(reader, &mut parts)?,
            "selp" => {
                let (of, _) = parts.typed(reader)?;
                let to = self.register(reader)?;
                let values = [self.next(reader)?, self.next(reader)?];
                reader.expect(',')?;
                let by = self.register(reader)?;
                Work::Select { of, to, values, by }
            }
            "bra" => {
                parts.has("uni");
                let label = reader.word()?;
                let branch = (self.code.len(), reader.line(), label);
                self.branches.push(branch);
                Work::Branch(0)
            }
            "call" => {
                parts.has("uni");
                let returns = match reader.peek() {
                    Some(Token::Sign('(')) => {
                        let places = self.places(reader)?;
                        reader.expect(',')?;
                        places
                    }
                    _ => Vec::new(),
                };
                let call = Call {
                    name: reader.word()?,
                    line: reader.line(),
                    from: self.index,
                    at: self.code.len(),
                };
                self.calls.push(call);
                let arguments = match reader.passes(',') {
                    true => self.places(reader)?,
                    false => Vec::new(),
                };
                Work::Call {
                    function: 0,
                    returns,
                    arguments,
                }
            }
            "ret" => {
                parts.has("uni");
                Work::Return
            }
            "exit" => Work::Exit,
            "trap" => Work::Trap,
            "nanosleep" => {
                parts.typed(reader)?;
                self.operand(reader)?;
                Work::Sleep
            }
            _ => self.arithmetic(reader, name, &mut parts)?,
        };
        parts.done(reader)?;
        Ok(work)
    }

    fn moved(&self, reader: &mut Reader<'_>, parts: &mut Parts<'_>) -> Parsed<Work> {
        let bits = match parts.has("pred") {
            true => 1,
            false => parts.typed(reader)?.0.bits,
        };
        let to = self.registers(reader)?;
        reader.expect(',')?;
        let from = self.operands(reader)?;
        match (&to[..], &from[..]) {
            ([to], [from]) => Ok(Work::Move {
                to: *to,
                from: *from,
            }),
            ([to], _) => Ok(Work::Pack {
                to: *to,
                bits: bits / from.len() as u8,
                from,
            }),
            (_, [from]) => Ok(Work::Unpack {
                bits: bits / to.len() as u8,
                from: *from,
                to,
            }),
            _ => Err(reader.wrong("a move of vectors")),
        }
    }

    fn compare(&self, reader: &mut Reader<'_>, parts: &mut Parts<'_>) -> Parsed<Work> {
        let how = parts.pick(&[
            ("eq", Comparison::Equal),
            ("ne", Comparison::NotEqual),
            ("lt", Comparison::Less),
            ("lo", Comparison::Less),
            ("le", Comparison::LessOrEqual),
            ("ls", Comparison::LessOrEqual),
            ("gt", Comparison::Greater),
            ("hi", Comparison::Greater),
            ("ge", Comparison::GreaterOrEqual),
            ("hs", Comparison::GreaterOrEqual),
        ]);
        let how = how.ok_or_else(|| reader.wrong("a comparison that is not known here"))?;
        let with = parts.pick(&[
            ("and", Binary::And),
            ("or", Binary::Or),
            ("xor", Binary::Xor),
        ]);
        let (of, _) = parts.typed(reader)?;
        let to = self.register(reader)?;
        let values = [self.next(reader)?, self.next(reader)?];
        let with = match with {
            Some(with) => {
                reader.expect(',')?;
                let is_true = !reader.passes('!');
                Some((with, self.register(reader)?, is_true))
            }
            None => None,
        };
        Ok(Work::Compare {
            how,
            of,
            to,
            values,
            with,
        })
    }

    fn arithmetic(
        &self,
        reader: &mut Reader<'_>,
        name: &str,
        parts: &mut Parts<'_>,
    ) -> Parsed<Work> {
        let how = match name {
            "add" => Binary::Add,
            "sub" => Binary::Subtract,
            "mul" if parts.has("hi") => Binary::MultiplyHigh,
            "mul" if parts.has("wide") => Binary::MultiplyWide,
            "mul" if parts.has("lo") => Binary::MultiplyLow,
            "div" => Binary::Divide,
            "rem" => Binary::Remainder,
            "and" => Binary::And,
            "or" => Binary::Or,
            "xor" => Binary::Xor,
            "shl" => Binary::ShiftLeft,
            "shr" => Binary::ShiftRight,
            "min" => Binary::Min,
            "max" => Binary::Max,
            _ => return Err(reader.wrong(&format!("{} is not known here", parts.word))),
        };
        let of = match parts.has("pred") {
            true => Type {
                bits: 1,
                signed: false,
            },
            false => parts.typed(reader)?.0,
        };
        let to = self.register(reader)?;
        let values = [self.next(reader)?, self.next(reader)?];
        Ok(Work::Binary {
            how,
            of,
            to,
            values,
        })
    }
}

/// The parts of an instruction's name that were not looked at.
struct Parts<'a> {
    word: &'a str,
    left: Vec<&'a str>,
}

impl Parts<'_> {
    fn has(&mut self, part: &str) -> bool {
        let at = self.left.iter().position(|found| *found == part);
        at.map(|at| self.left.remove(at)).is_some()
    }

    fn pick<T: Copy>(&mut self, from: &[(&str, T)]) -> Option<T> {
        let mut from = from.iter();
        from.find_map(|(part, value)| self.has(part).then_some(*value))
    }

    fn scope(&mut self) -> Option<Scope> {
        self.pick(&[
            ("cta", Scope::Block),
            ("gpu", Scope::Device),
            ("sys", Scope::System),
        ])
    }

    fn ordered(&mut self, reader: &Reader<'_>, else_order: Order) -> Parsed<(Order, Scope)> {
        // Memory of other spaces is not there; generic addresses are global ones.
        self.has("global");
        if self.has("volatile") {
            return Ok((Order::Relaxed, Scope::System));
        }
        let order = self.pick(&[
            ("weak", Order::Weak),
            ("relaxed", Order::Relaxed),
            ("acquire", Order::Acquire),
            ("release", Order::Release),
            ("acq_rel", Order::AcquireRelease),
        ]);
        let scope = self.scope();
        match (order, scope) {
            (Some(Order::Weak), None) => Ok((Order::Weak, Scope::Block)),
            (None, None) if else_order == Order::Weak => Ok((Order::Weak, Scope::Block)),
            (None, scope) if else_order == Order::Relaxed => {
                Ok((Order::Relaxed, scope.unwrap_or(Scope::Device)))
            }
            (Some(order), Some(scope)) if order != Order::Weak => Ok((order, scope)),
            _ => Err(reader.wrong(&format!("{}: an order without a scope", self.word))),
        }
    }

    fn take_type(&mut self) -> Option<Type> {
        let at = self.left.iter().position(|part| type_of(part).is_some())?;
        type_of(self.left.remove(at))
    }

    /// The type, and of how many.
    fn typed(&mut self, reader: &Reader<'_>) -> Parsed<(Type, usize)> {
        let count = self.pick(&[("v2", 2), ("v4", 4)]).unwrap_or(1);
        let of = self.take_type();
        let of = of.ok_or_else(|| reader.wrong(&format!("{} has no type", self.word)))?;
        Ok((of, count))
    }

    fn counted(&self, reader: &Reader<'_>, found: usize, count: usize) -> Parsed<()> {
        match found == count {
            true => Ok(()),
            false => Err(reader.wrong(&format!("{} with {found} registers", self.word))),
        }
    }

    fn done(&self, reader: &Reader<'_>) -> Parsed<()> {
        match self.left.first() {
            None => Ok(()),
            Some(part) => Err(reader.wrong(&format!("{}: .{part} is not known here", self.word))),
        }
    }
}

fn type_of(word: &str) -> Option<Type> {
    let (kind, bits) = word.split_at_checked(1)?;
    let signed = match kind {
        "s" => true,
        "u" | "b" => false,
        // As bits.
        "f" if matches!(bits, "32" | "64") => false,
        _ => return None,
    };
    let bits = match bits {
        "8" => 8,
        "16" => 16,
        "32" => 32,
        "64" => 64,
        _ => return None,
    };
    Some(Type { bits, signed })
}

fn special(word: &str) -> Option<Special> {
    Some(match word {
        "%tid.x" => Special::Thread,
        "%ntid.x" => Special::Threads,
        "%ctaid.x" => Special::Block,
        "%nctaid.x" => Special::Blocks,
        "%laneid" => Special::Lane,
        "%clock64" | "%globaltimer" => Special::Clock,
        "%tid.y" | "%tid.z" | "%ctaid.y" | "%ctaid.z" => Special::Zero,
        "%ntid.y" | "%ntid.z" | "%nctaid.y" | "%nctaid.z" => Special::One,
        _ => return None,
    })
}
