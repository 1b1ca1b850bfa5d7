//! A Jinja environment that renders chat templates as transformers does.
//!
//! transformers uses a sandboxed Jinja2 with `trim_blocks`, `lstrip_blocks`, loop controls, a
//! `{% generation %}` block, `raise_exception`, `strftime_now` and a `tojson` of its own; templates
//! also call methods of Python's strings and dicts. minijinja provides the language, the files here
//! the rest. Not provided: the `%` operator on strings, and `tools`, which no sample has.

mod date;
mod generation;
mod python;
mod tojson;

pub use date::TemplateDate;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

/// A template source that cannot be compiled.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TemplateSyntaxError(String);

/// A compiled chat template.
pub(crate) struct CompiledTemplate {
    environment: Environment<'static>,
}

const NAME: &str = "chat_template";

impl CompiledTemplate {
    /// Compiles a template; `date` is what it sees through `strftime_now`.
    pub(crate) fn new(source: &str, date: TemplateDate) -> Result<Self, TemplateSyntaxError> {
        let syntax_error = |e: Error| TemplateSyntaxError(describe(&e));
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(syntax_error)?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(python::call_method);
        environment.add_filter("tojson", tojson::tojson);
        environment.add_filter("trim", python::trim);
        environment.add_test("sequence", is_sequence);
        environment.add_test("iterable", is_iterable);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", move |format: &str| date.format(format));
        let source = generation::replace_tags(source).into_owned();
        environment.add_template_owned(NAME, source).map_err(syntax_error)?;
        Ok(Self { environment })
    }

    /// Renders with these variables; the error is a sentence for people.
    pub(crate) fn render(&self, variables: Value) -> Result<String, String> {
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render(variables))
            .map_err(|e| describe(&e))
    }
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_owned()))
}

/// Python's idea of a sequence: what has a length and items, strings and dicts included.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined)
}

fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || value.kind() == ValueKind::Iterable
}

/// An error with its causes on one line.
fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
