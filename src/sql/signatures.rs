//! The table functions that SQL gets, with their arguments.

/// What an argument takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A whole number, not negative.
    Count,
    /// A number.
    Number,
    /// A list of numbers.
    Numbers,
    /// A list of numbers, strings or both.
    Values,
    /// A string.
    Text,
    /// `true` or `false`.
    Flag,
    /// A string or a list of strings.
    Texts,
    /// A number of bytes, or a string with a unit.
    Size,
    /// A whole number, or the string `block`.
    BatchSize,
    /// A number, or a string like `1%`.
    NumberOrText,
    /// A whole number, a pair of them, or a string like `2..8`.
    Concurrency,
}

impl Kind {
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Count => "a whole number that is not negative",
            Self::Number => "a number",
            Self::Numbers => "a list of numbers",
            Self::Values => "a list of numbers or strings",
            Self::Text => "a string",
            Self::Flag => "true or false",
            Self::Texts => "a string or a list of strings",
            Self::Size => "a size like '64MiB'",
            Self::NumberOrText => "a number or a string",
            Self::Concurrency => "a number like 8, or a range like (2, 8) or '2..8'",
            Self::BatchSize => "a whole number above 0, or 'block'",
        }
    }
}

/// How many tables a function takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tables {
    /// None.
    No,
    /// One.
    One,
    /// Two or more; its other arguments are given by name.
    Several,
}

impl Tables {
    pub(super) fn least(self) -> usize {
        match self {
            Self::No => 0,
            Self::One => 1,
            Self::Several => 2,
        }
    }

    pub(super) fn most(self) -> usize {
        match self {
            Self::No => 0,
            Self::One => 1,
            Self::Several => usize::MAX,
        }
    }
}

/// A table function: first its tables, then its arguments, by position or by name.
#[derive(Debug)]
pub(super) struct Signature {
    pub(super) name: &'static str,
    pub(super) tables: Tables,
    pub(super) required: usize,
    pub(super) arguments: &'static [(&'static str, Kind)],
}

impl Signature {
    /// The function of this name.
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        SIGNATURES.iter().find(|s| s.name.eq_ignore_ascii_case(name))
    }

    /// Names of all functions.
    pub(super) fn all() -> impl Iterator<Item = &'static str> {
        SIGNATURES.iter().map(|signature| signature.name)
    }

    /// Names of the arguments.
    pub(super) fn names(&self) -> Vec<&'static str> {
        self.arguments.iter().map(|(name, _)| *name).collect()
    }
}

/// What can be said of a map operator. The first is what it calls.
macro_rules! map_arguments {
    ($($second:expr)?) => {&[
    ("function", Kind::Text),
    $($second,)?
    ("batch_size", Kind::BatchSize),
    ("concurrency", Kind::Concurrency),
    ("num_cpus", Kind::Number),
    ("memory", Kind::Size),
    ("compute", Kind::Text),
    ("num_gpus", Kind::Number),
    ("resources", Kind::Text),
    ("max_tasks_in_flight_per_actor", Kind::Count),
    ("max_concurrency", Kind::Count),
    ("on_error", Kind::Text),
    ("max_errors", Kind::NumberOrText),
    ("divert_to", Kind::Text),
    ]};
}

const SIGNATURES: &[Signature] = &[
    Signature {
        name: "range",
        tables: Tables::No,
        required: 1,
        arguments: &[("n", Kind::Count), ("override_num_blocks", Kind::Count)],
    },
    #[cfg(feature = "tpch")]
    Signature {
        name: "tpch",
        tables: Tables::No,
        required: 2,
        arguments: &[("table", Kind::Text), ("scale", Kind::Number), ("override_num_blocks", Kind::Count)],
    },
    Signature {
        name: "read_parquet",
        tables: Tables::No,
        required: 1,
        arguments: &[
            ("paths", Kind::Texts),
            ("columns", Kind::Texts),
            ("override_num_blocks", Kind::Count),
            ("include_paths", Kind::Flag),
        ],
    },
    Signature {
        name: "read_csv",
        tables: Tables::No,
        required: 1,
        arguments: &[
            ("paths", Kind::Texts),
            ("columns", Kind::Texts),
            ("override_num_blocks", Kind::Count),
            ("include_paths", Kind::Flag),
            ("has_header", Kind::Flag),
            ("delimiter", Kind::Text),
            ("newlines_in_values", Kind::Flag),
            ("types", Kind::Text),
        ],
    },
    Signature {
        name: "read_json",
        tables: Tables::No,
        required: 1,
        arguments: &[
            ("paths", Kind::Texts),
            ("columns", Kind::Texts),
            ("override_num_blocks", Kind::Count),
            ("include_paths", Kind::Flag),
            ("types", Kind::Text),
        ],
    },
    Signature { name: "map_batches", tables: Tables::One, required: 1, arguments: MAP_ARGUMENTS },
    Signature { name: "map_groups", tables: Tables::One, required: 2, arguments: MAP_GROUPS_ARGUMENTS },
    Signature {
        name: "random_shuffle",
        tables: Tables::One,
        required: 0,
        arguments: &[("seed", Kind::Count), ("num_blocks", Kind::Count), ("epoch", Kind::Count)],
    },
    Signature {
        name: "repartition",
        tables: Tables::One,
        required: 0,
        arguments: &[
            ("num_blocks", Kind::Count),
            ("shuffle", Kind::Flag),
            ("keys", Kind::Texts),
            ("sort", Kind::Flag),
            ("target_num_rows_per_block", Kind::Count),
            ("strict", Kind::Flag),
            ("target_bytes_per_block", Kind::Size),
            ("boundaries", Kind::Values),
        ],
    },
    Signature {
        name: "randomize_block_order",
        tables: Tables::One,
        required: 0,
        arguments: &[("seed", Kind::Count), ("window", Kind::Count), ("epoch", Kind::Count)],
    },
    Signature { name: "summary", tables: Tables::One, required: 0, arguments: &[] },
    Signature { name: "diverted", tables: Tables::No, required: 1, arguments: &[("name", Kind::Text)] },
    Signature { name: "zip", tables: Tables::Several, required: 0, arguments: &[] },
    Signature {
        name: "mix",
        tables: Tables::Several,
        required: 0,
        arguments: &[("weights", Kind::Numbers), ("stopping_condition", Kind::Text)],
    },
];

/// Arguments of map operators.
const MAP_ARGUMENTS: &[(&str, Kind)] = map_arguments!();

/// The same for groups.
const MAP_GROUPS_ARGUMENTS: &[(&str, Kind)] = map_arguments!(("keys", Kind::Texts));

/// What `CREATE FUNCTION` says: the body as `function`, and defaults for calls that do not say otherwise.
pub(super) static CREATE_FUNCTION: Signature =
    Signature { name: "CREATE FUNCTION", tables: Tables::No, required: 1, arguments: MAP_ARGUMENTS };
