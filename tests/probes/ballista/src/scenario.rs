//! What is played, what is expected of it, and what was seen.

use std::fmt::{self, Display, Formatter};

use crate::Outcome;

/// What is killed, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scenario {
    /// Two stages with a shuffle between them; an executor is killed that holds output of the first.
    Shuffle(ShuffleVariant),
    /// One stage whose results stay with the executors; one is killed, or the scheduler is stopped for a while.
    OneStage(OneStageVariant),
    /// The same stage; the scheduler is killed, and a new one is started in its place.
    SchedulerKilled,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ShuffleVariant {
    /// Nobody is killed.
    Control,
    /// One task of the second stage has ended, and the others have not begun to read.
    Before,
    /// Four have ended, and those that run have read everything: nobody reads from the dead executor until the
    /// scheduler finds that it is gone.
    After,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum OneStageVariant {
    /// Nobody is killed.
    Control,
    /// An executor that has finished tasks and runs one is killed.
    Plain,
    /// As `Plain`, and the driver calls `executor_stopped`.
    Stopped,
    /// The executor is killed that has finished all tasks but one, and runs none.
    Idle,
    /// Nobody is killed. The scheduler is stopped until the executors' reports of finished tasks have failed.
    Pause,
}

/// What a round has come to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Finding {
    /// Each row once.
    Exact,
    /// A success with rows that are there twice.
    RowsTwice,
    /// All tasks done, none twice.
    DoneOnce,
    /// A success with all results on the executor that lives.
    OnSurvivor,
    /// A success with results that only the dead executor has.
    OnDead,
    Hung,
    Other(String),
}

impl Scenario {
    const KNOWN: [(&str, &str, Self); 9] = [
        ("a", "control", Self::Shuffle(ShuffleVariant::Control)),
        ("a", "before", Self::Shuffle(ShuffleVariant::Before)),
        ("a", "after", Self::Shuffle(ShuffleVariant::After)),
        ("b", "control", Self::OneStage(OneStageVariant::Control)),
        ("b", "plain", Self::OneStage(OneStageVariant::Plain)),
        ("b", "stopped", Self::OneStage(OneStageVariant::Stopped)),
        ("b", "idle", Self::OneStage(OneStageVariant::Idle)),
        ("b", "pause", Self::OneStage(OneStageVariant::Pause)),
        ("c", "plain", Self::SchedulerKilled),
    ];

    pub(crate) fn parse(scenario: &str, variant: &str) -> Outcome<Self> {
        let known = Self::KNOWN.into_iter().find(|(s, v, _)| (*s, *v) == (scenario, variant));
        let (_, _, found) = known.ok_or_else(|| format!("{scenario} {variant} is not one of {}", Self::known()))?;
        Ok(found)
    }

    /// All of them, as they are spelled.
    pub(crate) fn known() -> String {
        Self::KNOWN.map(|(scenario, variant, _)| format!("`{scenario} {variant}`")).join(", ")
    }

    /// What at least half of the rounds come to with Ballista 55.0.0, and what others may come to.
    fn expected(self) -> (Finding, Option<Finding>) {
        match self {
            Self::Shuffle(ShuffleVariant::Control) => (Finding::Exact, None),
            Self::Shuffle(_) => (Finding::RowsTwice, None),
            Self::OneStage(OneStageVariant::Control) => (Finding::DoneOnce, None),
            Self::OneStage(OneStageVariant::Plain | OneStageVariant::Stopped) => (Finding::OnSurvivor, None),
            // The last finished task may not be reported yet. Then the loss matters, and all are done again.
            Self::OneStage(OneStageVariant::Idle) => (Finding::OnDead, Some(Finding::OnSurvivor)),
            // The scheduler may get to what was sent to it before it sees that nobody waits for the answer.
            Self::OneStage(OneStageVariant::Pause) => (Finding::Hung, Some(Finding::DoneOnce)),
            Self::SchedulerKilled => (Finding::DoneOnce, None),
        }
    }

    pub(crate) fn expects(self, finding: &Finding) -> bool {
        let (usual, seldom) = self.expected();
        *finding == usual || seldom.is_some_and(|seldom| *finding == seldom)
    }

    /// What the rounds have come to instead of what is expected, if they have.
    pub(crate) fn otherwise(self, findings: &[Finding]) -> Option<String> {
        let rounds = findings.len();
        let times = |finding: &Finding| findings.iter().filter(|seen| *seen == finding).count();
        if findings.iter().all(|finding| self.expects(finding)) && 2 * times(&self.expected().0) >= rounds {
            return None;
        }
        let mut different: Vec<&Finding> = Vec::new();
        for finding in findings {
            if !different.contains(&finding) {
                different.push(finding);
            }
        }
        let counts = different.iter().map(|finding| format!("{finding} in {} of {rounds} rounds", times(finding)));
        let counts = counts.collect::<Vec<_>>().join(", ");
        let has_hole = self.expected().0 == Finding::RowsTwice;
        Some(match times(&Finding::Exact) {
            exact if has_hole && exact == rounds => format!("{counts}: the hole is closed"),
            exact if has_hole && exact > 0 => format!("{counts}: the hole is not always open"),
            _ => counts,
        })
    }
}

impl Display for Scenario {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let known = Self::KNOWN.into_iter().find(|(_, _, scenario)| scenario == self);
        known.map_or(Ok(()), |(scenario, variant, _)| write!(f, "{scenario} {variant}"))
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact",
            Self::RowsTwice => "success with rows twice",
            Self::DoneOnce => "all done, none twice",
            Self::OnSurvivor => "success, all on the survivor",
            Self::OnDead => "success, some only on the dead one",
            Self::Hung => "hung",
            Self::Other(what) => what,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_has_a_name() {
        for (scenario, variant, known) in Scenario::KNOWN {
            assert_eq!(Scenario::parse(scenario, variant).unwrap(), known);
            assert_eq!(known.to_string(), format!("{scenario} {variant}"));
        }
        let error = Scenario::parse("a", "idle").unwrap_err().to_string();
        assert!(error.starts_with("a idle is not one of `a control`, `a before`"), "{error}");
    }

    #[test]
    fn what_is_not_expected_is_told() {
        use Finding::*;
        let lost = || Other("9 rows lost".to_owned());
        let cases = [
            ("a", "before", vec![RowsTwice, RowsTwice], None),
            ("a", "before", vec![Exact, Exact], Some("exact in 2 of 2 rounds: the hole is closed")),
            (
                "a",
                "after",
                vec![RowsTwice, Exact],
                Some("success with rows twice in 1 of 2 rounds, exact in 1 of 2 rounds: the hole is not always open"),
            ),
            ("a", "after", vec![lost()], Some("9 rows lost in 1 of 1 rounds")),
            ("a", "control", vec![Exact], None),
            ("b", "idle", vec![OnSurvivor, OnDead], None),
            ("b", "idle", vec![OnSurvivor], Some("success, all on the survivor in 1 of 1 rounds")),
            ("b", "pause", vec![Hung, DoneOnce, Hung], None),
            ("c", "plain", vec![Hung], Some("hung in 1 of 1 rounds")),
        ];
        for (scenario, variant, findings, otherwise) in cases {
            let scenario = Scenario::parse(scenario, variant).unwrap();
            assert_eq!(scenario.otherwise(&findings).as_deref(), otherwise, "{scenario}");
        }
    }
}
