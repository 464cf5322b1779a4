//! Divides limits that routers have together, and tells each router its share.
//!
//! What is divided how is pure (`core`, `division`); here are the clock, the world, and the way to the sessions. Callers:
//! router sessions (who comes, says and goes), `app` (the loop).

mod core;
mod division;
mod router;
#[cfg(test)]
mod tests;
