// Shows on the node what DiT Run Report and DiT Compare say. The frontend shows pictures on any node, but text only on
// its own.
import { app } from "../../scripts/app.js"

const NODES = new Set(["DiTRunReport", "DiTCompare"])
const WIDGET = "summary"
const MIN_HEIGHT = 110 // pixels: five lines

function show(node, text) {
  let widget = node.widgets?.find((one) => one.name === WIDGET)
  if (!widget) {
    const element = document.createElement("textarea")
    element.className = "comfy-multiline-input"
    element.readOnly = true
    widget = node.addDOMWidget(WIDGET, "text", element, {
      serialize: false, // not sent to the server
      getValue: () => element.value,
      setValue: (value) => (element.value = value),
      getMinHeight: () => MIN_HEIGHT
    })
    widget.serialize = false // not saved in the workflow
  }
  widget.value = text
}

app.registerExtension({
  name: "dit-layerwise-offload.show-text",
  beforeRegisterNodeDef(nodeType, nodeData) {
    if (!NODES.has(nodeData.name)) return
    const onExecuted = nodeType.prototype.onExecuted
    nodeType.prototype.onExecuted = function (output) {
      onExecuted?.apply(this, arguments)
      if (output?.text) show(this, output.text.join("\n"))
    }
  }
})
