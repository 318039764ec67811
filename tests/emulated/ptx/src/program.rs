//! A module that was read: functions, and instructions as the interpreter wants them.

use crate::parse::{self, Malformed};

/// A module.
#[derive(Debug)]
pub struct Program {
    pub(crate) functions: Vec<Function>,
}

/// A function or an entry of it.
#[derive(Debug)]
pub struct Function {
    pub(crate) name: String,
    pub(crate) is_entry: bool,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) returns: Vec<Parameter>,
    /// Bytes of parameters, returned values and what is handed to others.
    pub(crate) room: usize,
    /// Bits of each register.
    pub(crate) registers: Vec<u8>,
    pub(crate) code: Vec<Instruction>,
}

/// A parameter: its place in the function's room, and how many bytes it has.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Where it begins.
    pub place: usize,
    /// Its bytes.
    pub size: usize,
}

impl Program {
    /// Reads a module.
    ///
    /// # Errors
    /// What is not understood, and where.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        parse::program(text)
    }

    /// An entry by its name: its number.
    pub fn entry(&self, name: &str) -> Option<usize> {
        let mut functions = self.functions.iter();
        functions.position(|function| function.is_entry && function.name == name)
    }

    /// A function by its number.
    pub fn function(&self, index: usize) -> Option<&Function> {
        self.functions.get(index)
    }
}

impl Function {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its parameters.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }
}

pub(crate) type Register = u16;

/// A value of an instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand {
    Register(Register),
    Number(u64),
    Special(Special),
}

/// What a thread knows of its place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Special {
    Thread,
    Threads,
    Block,
    Blocks,
    Lane,
    Clock,
    Zero,
    One,
}

/// How many bits, and whether signed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Type {
    pub(crate) bits: u8,
    pub(crate) signed: bool,
}

impl Type {
    pub(crate) const fn bytes(self) -> u64 {
        self.bits as u64 / 8
    }
}

/// Of a load, store or atomic.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Order {
    Weak,
    Relaxed,
    Acquire,
    Release,
    AcquireRelease,
}

impl Order {
    pub(crate) const fn acquires(self) -> bool {
        matches!(self, Self::Acquire | Self::AcquireRelease)
    }

    pub(crate) const fn releases(self) -> bool {
        matches!(self, Self::Release | Self::AcquireRelease)
    }
}

/// Who is to see it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Scope {
    Block,
    Device,
    System,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Change {
    Add,
    And,
    Or,
    Xor,
    Min,
    Max,
    Increment,
    Decrement,
    Exchange,
    CompareExchange,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Binary {
    Add,
    Subtract,
    MultiplyLow,
    MultiplyHigh,
    MultiplyWide,
    Divide,
    Remainder,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    Min,
    Max,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// An address: a value and what is added to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) base: Operand,
    pub(crate) offset: i64,
}

#[derive(Debug)]
pub(crate) struct Instruction {
    /// Done only when the register is 1, or 0.
    pub(crate) guard: Option<(Register, bool)>,
    pub(crate) work: Work,
}

#[derive(Debug)]
pub(crate) enum Work {
    /// Of the function's room.
    LoadParameter {
        to: Vec<Register>,
        of: Type,
        place: usize,
    },
    StoreParameter {
        from: Vec<Operand>,
        of: Type,
        place: usize,
    },
    Load {
        to: Vec<Register>,
        of: Type,
        at: Address,
        order: Order,
        scope: Scope,
    },
    Store {
        from: Vec<Operand>,
        of: Type,
        at: Address,
        order: Order,
        scope: Scope,
    },
    Atomic {
        to: Option<Register>,
        change: Change,
        of: Type,
        at: Address,
        values: [Operand; 2],
        order: Order,
        scope: Scope,
    },
    Fence(Scope),
    Barrier,
    Move {
        to: Register,
        from: Operand,
    },
    /// Parts of so many bits, the lowest first.
    Pack {
        to: Register,
        from: Vec<Operand>,
        bits: u8,
    },
    Unpack {
        to: Vec<Register>,
        from: Operand,
        bits: u8,
    },
    Binary {
        how: Binary,
        of: Type,
        to: Register,
        values: [Operand; 2],
    },
    /// The low half of a product, or with `wide` all of it, and a sum.
    MultiplyAdd {
        of: Type,
        wide: bool,
        to: Register,
        values: [Operand; 3],
    },
    Not {
        of: Type,
        to: Register,
        value: Operand,
    },
    Negate {
        of: Type,
        to: Register,
        value: Operand,
    },
    Convert {
        from: Type,
        into: Type,
        to: Register,
        value: Operand,
    },
    Compare {
        how: Comparison,
        of: Type,
        to: Register,
        values: [Operand; 2],
        /// And, or, exclusive or, with another register, or its contrary.
        with: Option<(Binary, Register, bool)>,
    },
    Select {
        of: Type,
        to: Register,
        values: [Operand; 2],
        by: Register,
    },
    Branch(usize),
    Call {
        function: usize,
        /// Places in this function's room: where results go, where arguments are.
        returns: Vec<usize>,
        arguments: Vec<usize>,
    },
    Return,
    Exit,
    Sleep,
    Trap,
}
