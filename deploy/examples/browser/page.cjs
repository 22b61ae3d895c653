// What @playwright/mcp runs for each page before it leads anywhere: dialogs are dismissed, and a window that a page opens as somebody clicks is
// closed, after the server has seen it. Others Chromium blocks by itself.
module.exports.default = async ({ page }) => {
  page.on('dialog', (dialog) => dialog.dismiss().catch(() => {}));
  if (await page.opener()) setTimeout(() => page.close().catch(() => {}), 0);
};
