// The search runs in a worker, which browsers refuse to pages opened from the file system. There, run it in a hidden
// frame instead, so that the built site needs neither a server nor the network.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inner = this.frame.contentWindow
      inner.postToPage = data => this.tell(data)
      inner.document.open()
      inner.document.write(`<!doctype html><base href="${document.baseURI}"><script>
        window.postMessage = data => postToPage(data)
        window.importScripts = (...urls) => urls.reduce((before, src) => before.then(() => new Promise((done, failed) => {
          const script = document.createElement("script")
          script.src = src
          script.onload = done
          script.onerror = failed
          document.body.appendChild(script)
        })), Promise.resolve())
      </scr` + `ipt><body><script src="${url}"></scr` + `ipt>`)
      inner.document.close()
      this.ready = new Promise(done => { this.frame.addEventListener("load", done) })
    }

    postMessage(data) {
      this.ready.then(() => {
        const inner = this.frame.contentWindow
        inner.dispatchEvent(new inner.MessageEvent("message", { data }))
      })
    }

    tell(data) {
      const event = new MessageEvent("message", { data })
      this.dispatchEvent(event)
      if (this.onmessage) this.onmessage(event)
    }

    terminate() {
      this.frame.remove()
    }
  }
}
