#include "engine/checkpoint/synthetic_tool_text.h"

namespace spark::engine {

std::string_view synthetic_tool_text() {
  return R"PYTHON(# The tool text of a synthetic checkpoint. The published model's module has the same names and other words.
dsml_token: str = "\uff5cDSML\uff5c"
thinking_start_token: str = "<think>"
thinking_end_token: str = "</think>"
calls_tag: str = " calls"
call_tag: str = " invoke"
parameter_tag: str = " parameter"

TOOLS_TEMPLATE = """## Tools

Tools are listed below, a JSON schema a line. To call some, end the answer with one block of this form:

<{dsml_token}{calls}>
<{dsml_token}{call} name="NAME">
<{dsml_token}{parameter} name="KEY" string="true">TEXT</{dsml_token}{parameter}>
<{dsml_token}{parameter} name="KEY" string="false">JSON</{dsml_token}{parameter}>
</{dsml_token}{call}>
</{dsml_token}{calls}>

Reasoning, if any, stands between {thinking_start_token} and {thinking_end_token}, before the block.

{tool_schemas}

Call no tool that is not listed.
"""


def render(schemas):
    return TOOLS_TEMPLATE.format(
        tool_schemas="\n".join(schemas),
        dsml_token=dsml_token,
        calls=calls_tag,
        call=call_tag,
        parameter=parameter_tag,
        thinking_start_token=thinking_start_token,
        thinking_end_token=thinking_end_token,
    )
)PYTHON";
}

}  // namespace spark::engine
