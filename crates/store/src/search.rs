//! Full-text search: one query grammar, one kind of document and one ranking for every backend. An index is a hint: what it finds is looked up
//! in the log before it is shown.
//!
//! - [`query`]: the grammar. `lexer`: its tokens. [`expression`]: a query as an expression for a full-text index.
//! - [`document`]: what is indexed: the texts of an event or a blob, in passages. [`event_texts`]: which texts of an event those are.
//! - [`segment`]: text as a tokenizer for words needs it.
//! - [`rank_fusion`]: several ranked lists as one.
//! - [`contract`]: the contract of an index. [`mod@read_back`]: its hits, from the verified logs. [`mod@since`]: the times of a filter.

pub mod contract;
pub mod document;
pub mod event_texts;
pub mod expression;
mod lexer;
pub mod query;
pub mod rank_fusion;
pub mod read_back;
pub mod segment;
pub mod since;

pub use contract::{Hit, IndexProgress, NotSearched, Search, SearchHits, SearchRequest, UnembeddedPassage};
pub use document::{Passage, PassageKind};
pub use query::{Expr, Filters, Query, QueryError};
pub use read_back::{ReadBack, read_back, read_unverified};
pub use since::since;
