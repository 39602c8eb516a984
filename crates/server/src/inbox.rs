//! What waits for a person, over all threads.

use axum::Json;
use axum::extract::State;
use selvedge::{Value, json};

use crate::listen::App;
use crate::problem::Result;

/// The needs, newest first, as `selvedge inbox --json` has them.
pub(crate) async fn list(State(app): State<App>) -> Result<Json<Value>> {
    let needs = app.selvedge.needs().await?;
    Ok(Json(json!({"needs": needs})))
}
