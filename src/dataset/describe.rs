//! What a dataset is, in a line, and the blocks that it has.

use datafusion::common::Result;

use super::Dataset;
use crate::block::BlockMetadata;
use crate::physical::Inputs;

impl Dataset {
    /// As Ray shows one: `Dataset(num_blocks=200, num_rows=?, schema={id: Int64})`. Where only running tells how many
    /// blocks there are, it is the number of read tasks. Nothing runs.
    ///
    /// # Errors
    ///
    /// Where the dataset cannot be planned, or a footer cannot be read.
    pub async fn describe(&self) -> Result<String> {
        let blocks = match self.num_blocks().await? {
            Some(blocks) => blocks as u64,
            None => Inputs::of(&self.state.create_physical_plan(&self.plan).await?).tasks.iter().sum(),
        };
        let rows = match &self.materialized {
            Some(blocks) => Some(blocks.total_rows()),
            None => self.count_by_metadata().await?,
        };
        let rows = rows.map_or("?".to_owned(), |rows| rows.to_string());
        let schema = self.schema();
        let columns = schema.fields().iter().map(|field| format!("{}: {}", field.name(), field.data_type()));
        let columns = columns.collect::<Vec<_>>().join(", ");
        Ok(format!("Dataset(num_blocks={blocks}, num_rows={rows}, schema={{{columns}}})"))
    }

    /// Runs everything, unless the dataset is materialized, and says how many rows and bytes each block has.
    ///
    /// # Errors
    ///
    /// As [`Dataset::materialize`].
    pub async fn internal_blocks(&self) -> Result<Vec<BlockMetadata>> {
        match &self.materialized {
            Some(blocks) => Ok(blocks.metadata()),
            None => Ok(self.materialize().await?.materialized.map_or_else(Vec::new, |blocks| blocks.metadata())),
        }
    }
}
