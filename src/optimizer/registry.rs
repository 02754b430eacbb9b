//! The rule registry: named logical and physical rules, each placed by an anchor among DataFusion's own.
//!
//! DataFusion appends a user's rules at the end, where most of them come too late. Here a rule says where it belongs;
//! an anchor that does not exist is an error when the session is built, so an upgrade of DataFusion cannot silently
//! move or drop a rule.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{Result, config_err};
use datafusion::optimizer::OptimizerRule;
use datafusion::optimizer::optimizer::Optimizer;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;

use crate::error::unknown_name;

/// A rule that rewrites logical plans.
type LogicalRule = Arc<dyn OptimizerRule + Send + Sync>;
/// A rule that rewrites physical plans.
type PhysicalRule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// Where a rule stands among the rules that are there before it. Rule names are those of `list`; where DataFusion has
/// the same rule several times, the occurrence counts from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Anchor {
    /// Before all others.
    First,
    /// Right before an occurrence of a rule.
    Before(String, usize),
    /// Right after an occurrence of a rule.
    After(String, usize),
    /// In place of an occurrence of a rule.
    Replace(String, usize),
    /// After all others.
    Last,
}

impl Anchor {
    /// Right before the first occurrence of `rule`.
    pub fn before(rule: &str) -> Self {
        Self::Before(rule.to_owned(), 0)
    }

    /// Right after the first occurrence of `rule`.
    pub fn after(rule: &str) -> Self {
        Self::After(rule.to_owned(), 0)
    }

    /// In place of the first occurrence of `rule`.
    pub fn replace(rule: &str) -> Self {
        Self::Replace(rule.to_owned(), 0)
    }
}

impl fmt::Display for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => write!(f, "first"),
            Self::Before(name, n) => write!(f, "before {name}#{n}"),
            Self::After(name, n) => write!(f, "after {name}#{n}"),
            Self::Replace(name, n) => write!(f, "replace {name}#{n}"),
            Self::Last => write!(f, "last"),
        }
    }
}

/// One placed rule.
struct Placed<R: ?Sized> {
    rule: Arc<R>,
    anchor: Anchor,
    /// Names of rules that must run earlier.
    requires: Vec<String>,
}

impl<R: ?Sized> Clone for Placed<R> {
    fn clone(&self) -> Self {
        Self { rule: Arc::clone(&self.rule), anchor: self.anchor.clone(), requires: self.requires.clone() }
    }
}

/// The rules of a session beyond DataFusion's. [`RuleRegistry::default`] has the engine's own.
#[derive(Clone)]
pub struct RuleRegistry {
    logical: Vec<Placed<dyn OptimizerRule + Send + Sync>>,
    physical: Vec<Placed<dyn PhysicalOptimizerRule + Send + Sync>>,
}

impl RuleRegistry {
    /// No rules at all.
    pub fn empty() -> Self {
        Self { logical: Vec::new(), physical: Vec::new() }
    }

    /// Adds a logical rule. `requires` names rules that must run before it.
    pub fn add_logical(&mut self, rule: LogicalRule, anchor: Anchor, requires: &[&str]) {
        self.logical.push(Placed { rule, anchor, requires: owned(requires) });
    }

    /// Adds a physical rule. `requires` names rules that must run before it.
    pub fn add_physical(&mut self, rule: PhysicalRule, anchor: Anchor, requires: &[&str]) {
        self.physical.push(Placed { rule, anchor, requires: owned(requires) });
    }

    /// Takes out the added rules of this name, logical and physical. DataFusion's own can be replaced, not removed.
    ///
    /// # Errors
    ///
    /// Where none of the added rules has this name.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        let before = self.logical.len() + self.physical.len();
        self.logical.retain(|p| p.rule.name() != name);
        self.physical.retain(|p| p.rule.name() != name);
        if self.logical.len() + self.physical.len() == before {
            let names: Vec<&str> = self.logical.iter().map(|p| p.rule.name()).collect();
            let names = [names, self.physical.iter().map(|p| p.rule.name()).collect()].concat();
            return Err(unknown_name("rule", name, "the registry", &names));
        }
        Ok(())
    }

    /// Names and anchors of the added rules: logical, then physical.
    pub fn list(&self) -> Vec<(String, Anchor)> {
        let logical = self.logical.iter().map(|p| (p.rule.name().to_owned(), p.anchor.clone()));
        logical.chain(self.physical.iter().map(|p| (p.rule.name().to_owned(), p.anchor.clone()))).collect()
    }

    /// All logical rules in order, DataFusion's and the added ones.
    ///
    /// # Errors
    ///
    /// Where an anchor or a required rule is not there.
    pub fn logical_rules(&self) -> Result<Vec<LogicalRule>> {
        self.logical_rules_among(None)
    }

    /// All physical rules in order, DataFusion's and the added ones.
    ///
    /// # Errors
    ///
    /// Where an anchor or a required rule is not there.
    pub fn physical_rules(&self) -> Result<Vec<PhysicalRule>> {
        self.physical_rules_among(None)
    }

    /// The added logical rules among those of an application, or DataFusion's.
    pub(crate) fn logical_rules_among(&self, rules: Option<Vec<LogicalRule>>) -> Result<Vec<LogicalRule>> {
        resolve(rules.unwrap_or_else(|| Optimizer::new().rules), &self.logical, |r| r.name())
    }

    /// The added physical rules among those of an application, or DataFusion's.
    pub(crate) fn physical_rules_among(&self, rules: Option<Vec<PhysicalRule>>) -> Result<Vec<PhysicalRule>> {
        resolve(rules.unwrap_or_else(|| PhysicalOptimizer::new().rules), &self.physical, |r| r.name())
    }
}

impl fmt::Debug for RuleRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

fn resolve<R: ?Sized>(mut rules: Vec<Arc<R>>, placed: &[Placed<R>], name: impl Fn(&R) -> &str) -> Result<Vec<Arc<R>>> {
    for Placed { rule, anchor, requires } in placed {
        let position = |anchor_name: &str, occurrence: usize| {
            let found = rules.iter().enumerate().filter(|(_, r)| name(r.as_ref()) == anchor_name).nth(occurrence);
            found.map(|(i, _)| i).ok_or_else(|| {
                let names: Vec<&str> = rules.iter().map(|r| name(r.as_ref())).collect();
                unknown_name(
                    "anchor",
                    &format!("{anchor_name}#{occurrence}"),
                    &format!("rule '{}'", name(rule)),
                    &names,
                )
            })
        };
        let index = match anchor {
            Anchor::First => 0,
            Anchor::Before(n, occurrence) => position(n, *occurrence)?,
            Anchor::After(n, occurrence) => position(n, *occurrence)? + 1,
            Anchor::Replace(n, occurrence) => {
                let index = position(n, *occurrence)?;
                rules.remove(index);
                index
            }
            Anchor::Last => rules.len(),
        };
        rules.insert(index, Arc::clone(rule));
        if let Some(missing) = requires.iter().find(|r| !rules[..index].iter().any(|b| name(b.as_ref()) == r.as_str()))
        {
            return config_err!("rule '{}' needs rule '{missing}' before it, but is placed {anchor}", name(rule));
        }
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::common::config::ConfigOptions;
    use datafusion::physical_plan::ExecutionPlan;

    #[derive(Debug)]
    struct Named(&'static str);

    impl PhysicalOptimizerRule for Named {
        fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
            Ok(plan)
        }

        fn name(&self) -> &str {
            self.0
        }

        fn schema_check(&self) -> bool {
            true
        }
    }

    fn names(registry: &RuleRegistry) -> Vec<String> {
        registry.physical_rules().unwrap().iter().map(|r| r.name().to_owned()).collect()
    }

    #[test]
    fn anchors_place_rules() {
        let mut registry = RuleRegistry::empty();
        let datafusion = names(&registry);
        registry.add_physical(Arc::new(Named("a")), Anchor::First, &[]);
        registry.add_physical(Arc::new(Named("b")), Anchor::after("a"), &["a"]);
        registry.add_physical(Arc::new(Named("c")), Anchor::Replace("FilterPushdown".into(), 0), &[]);
        registry.add_physical(Arc::new(Named("d")), Anchor::Last, &["a", "b"]);
        let all = names(&registry);
        assert_eq!(all[..2], ["a", "b"]);
        assert_eq!(all.last().unwrap(), "d");
        assert_eq!(all.len(), datafusion.len() + 3);
        registry.remove("b").unwrap();
        assert_eq!(registry.list().len(), 3);
    }

    #[test]
    fn a_missing_anchor_or_dependency_is_an_error() {
        let mut registry = RuleRegistry::empty();
        registry.add_physical(Arc::new(Named("a")), Anchor::before("LimitPushdwn"), &[]);
        let error = registry.physical_rules().unwrap_err().to_string();
        assert!(
            error.contains("unknown anchor 'LimitPushdwn#0' of rule 'a'. Did you mean 'LimitPushdown'?"),
            "{error}"
        );
        let mut registry = RuleRegistry::empty();
        registry.add_physical(Arc::new(Named("a")), Anchor::First, &["join_selection"]);
        let error = registry.physical_rules().unwrap_err().to_string();
        assert!(error.contains("needs rule 'join_selection' before it, but is placed first"), "{error}");
        assert!(registry.remove("zzz").unwrap_err().to_string().contains("unknown rule 'zzz'"));
    }

    #[test]
    fn the_engine_keeps_every_rule_of_datafusion_in_order() {
        let registry = RuleRegistry::default();
        // A guard has the name of the rule that it stands in place of.
        let ours: Vec<String> = registry.list().into_iter().map(|(name, _)| name).collect();
        let kept = |all: Vec<String>, datafusion: &[String]| -> Vec<String> {
            all.into_iter().filter(|name| !ours.contains(name) || datafusion.contains(name)).collect()
        };
        let datafusion: Vec<_> = PhysicalOptimizer::new().rules.iter().map(|r| r.name().to_owned()).collect();
        assert_eq!(kept(names(&registry), &datafusion), datafusion);
        let logical = registry.logical_rules().unwrap().iter().map(|r| r.name().to_owned()).collect();
        let datafusion: Vec<_> = Optimizer::new().rules.iter().map(|r| r.name().to_owned()).collect();
        assert_eq!(kept(logical, &datafusion), datafusion);
    }
}
