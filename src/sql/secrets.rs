//! `CREATE [OR REPLACE] SECRET name (TYPE s3, SCOPE 's3://bucket/', ENDPOINT '..', ..)` and `DROP SECRET name`.

use datafusion::common::{Result, not_impl_err, plan_err};
use datafusion::sql::parser::Statement as DFStatement;
use datafusion::sql::sqlparser::ast::{SecretOption, Statement};

use crate::cloud::StoreOptions;
use crate::dataset::DataContext;

/// The option of a secret that is none of its store.
const SCOPE: &str = "scope";

/// Creates or drops a secret, if that is what a statement says.
pub(super) fn run_secret(context: &DataContext, statement: &DFStatement) -> Result<bool> {
    let statement = match statement {
        DFStatement::Statement(statement) => statement,
        // Its text, which errors would tell, has what nobody should see.
        DFStatement::Explain(explain) if is_secret(&explain.statement) => {
            return not_impl_err!("EXPLAIN CREATE SECRET");
        }
        _ => return Ok(false),
    };
    match statement.as_ref() {
        Statement::CreateSecret { temporary: Some(false), .. } => {
            not_impl_err!("a secret that is kept: secrets last as long as their session")
        }
        Statement::CreateSecret { storage_specifier: Some(_), .. } => {
            not_impl_err!("CREATE SECRET .. IN: secrets last as long as their session")
        }
        Statement::CreateSecret { name: None, .. } => plan_err!("CREATE SECRET needs a name"),
        Statement::CreateSecret { or_replace, if_not_exists, name: Some(name), secret_type, options, .. } => {
            let is_known = || context.stores().secrets().iter().any(|secret| secret.name == name.value);
            if !(*if_not_exists && is_known()) {
                context.stores().create_secret(&name.value, options_of(&secret_type.value, options)?, *or_replace)?;
            }
            Ok(true)
        }
        Statement::DropSecret { if_exists, name, .. } => {
            context.stores().drop_secret(&name.value, *if_exists)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

fn is_secret(statement: &DFStatement) -> bool {
    matches!(statement, DFStatement::Statement(statement) if matches!(**statement, Statement::CreateSecret { .. }))
}

fn options_of(kind: &str, options: &[SecretOption]) -> Result<StoreOptions> {
    let mut found = StoreOptions { kind: kind.to_owned(), ..StoreOptions::default() };
    for SecretOption { key, value } in options {
        let key = key.value.to_lowercase();
        if found.options.iter().any(|(known, _)| *known == key) {
            return plan_err!("CREATE SECRET has '{key}' twice");
        }
        match key.as_str() {
            SCOPE => found.scope.clone_from(&value.value),
            _ => found.options.push((key, value.value.clone())),
        }
    }
    Ok(found)
}
